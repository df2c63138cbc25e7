// One table for each kind of boards, with the sorted rows of each board in a body of its own.

// So many rows are drawn at first, and again at each click on “more”.
const MOST_ROWS = 200;
let limit = MOST_ROWS;
const byName = new Intl.Collator('en');

function ordered(board) {
  const { of } = COLUMNS[state.sort];
  const sign = state.dir === 'ascending' ? 1 : -1;
  const has = (row) => of(row) != null;
  return [...shown.get(board)].sort((a, b) => {
    if (!has(a) || !has(b)) return has(b) - has(a) || a.i - b.i;
    const [x, y] = [of(a), of(b)];
    return sign * (typeof x === 'string' ? byName.compare(x, y) : x - y) || a.i - b.i;
  });
}

function tableOf(boards, kind, counts) {
  const columns = columnsOf(boards);
  const head = h('tr', {}, columns.map(([name, column]) => {
    const on = name === state.sort;
    const turned = on && state.dir === 'ascending' ? 'descending' : 'ascending';
    return h('th', { scope: 'col', class: name, 'aria-sort': on && state.dir }, h('button', { type: 'button', 'data-sort': name,
      click: () => { change({ sort: name, dir: on ? turned : natural(name) }); refocus(kind, name); } }, column.head));
  }));
  const bodies = boards.map((board) => h('tbody', { id: `board-${data.boards.indexOf(board)}` },
    h('tr', { class: 'board' }, h('th', { colspan: columns.length, scope: 'rowgroup' }, h('div', { class: 'title' }, heading(board),
      drawable(board).length ? h('button', { type: 'button', class: 'plot-this', 'aria-label': `Plot ${board.title}`, 'data-board': data.boards.indexOf(board),
        click: () => { shownBoard = board; drawPlot(); $('plot').scrollIntoView(); } }, 'Plot') : null))),
    ordered(board).slice(0, counts.get(board)).map((row) => rowOf(row, columns))));
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': data.kinds[kind] },
    h('table', { 'data-kind': kind, keydown: cellKey }, h('thead', {}, head), bodies));
}
function heading(board) {
  const [first, ...rest] = board.title.split(' · ');
  return h('span', {}, h('b', {}, first), rest.length ? ` · ${rest.join(' · ')}` : '', board.lacks ? h('em', {}, ` ${board.lacks}`) : null,
    board.how && !board.rows.some((row) => row.first != null) ? h('em', {}, ` no ranks: ${board.rows.find((row) => row.n)?.n ?? 'the'} samples separate no two methods`) : null);
}
const refocus = (kind, name) => document.querySelector(`table[data-kind="${kind}"] [data-sort="${name}"]`).focus();

function rowOf(row, columns) {
  const cells = columns.map(([name, column]) => {
    const [main, small, look, bold] = column.show(row);
    const method = name === 'method';
    const inside = main === '–' ? [main] : [
      h('button', { type: 'button', class: 'number', tabindex: method ? 0 : -1, click: () => openOrigin(row, name) },
        method ? breakable(main, marker(row)) : h(bold ? 'strong' : 'span', { class: 'main' }, main), small ? ' ' : null, small ? h('small', { class: look }, small) : null),
      method && row.beside ? h('small', { class: 'beside' }, 'measured with the others') : null,
      method && ending(row) ? h('b', { class: failed(row) ? 'ended' : 'fits' }, ending(row)) : null];
    return h(method ? 'th' : 'td', { class: name, scope: method && 'row' }, inside);
  });
  return h('tr', { 'data-row': row.i, class: failed(row) ? 'failed' : row.atChance && 'chance', mouseenter: () => light(row), mouseleave: () => light(null),
    focusin: () => light(row), focusout: () => light(null) }, cells);
}

// A narrow column breaks a name after its underscores.
const breakable = (name, before) => h('span', {}, name.split(/(?<=_)/).map((part, i) => (i ? [h('wbr'), part] : before ? h('span', { class: 'main' }, before, part) : part)));

function cellKey(event) {
  const button = event.target.closest('.number');
  if (!button) return;
  const inRow = [...button.closest('tr').querySelectorAll('.number')];
  const column = button.parentElement.cellIndex;
  const sameColumn = [...event.currentTarget.querySelectorAll('.number')].filter((other) => other.parentElement.cellIndex === column);
  const step = { ArrowRight: [inRow, 1], ArrowLeft: [inRow, -1], ArrowDown: [sameColumn, 1], ArrowUp: [sameColumn, -1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const [among, by] = step;
  const next = among[among.indexOf(button) + by];
  if (next) next.focus();
}

function drawBoards() {
  const boards = visible(), all = boards.flatMap((board) => shown.get(board));
  const bad = all.filter(failed).length;
  const many = (n, what) => `${grouped(n)} ${what}${n === 1 ? '' : 's'}`;
  $('count').textContent = all.length
    ? `${many(all.length, 'row')} on ${many(boards.length, 'board')}${bad ? `, ${bad} without a result` : ''}. ` +
      `Sorted by ${COLUMNS[state.sort].head.toLowerCase()}, ${state.dir}.`
    : 'No row has all of these. “Show all” takes the filters away.';
  $('csv').disabled = !all.length;
  const counts = new Map();
  let left = limit;
  for (const board of boards) {
    if (left > 0) counts.set(board, Math.min(left, shown.get(board).length));
    left -= shown.get(board).length;
  }
  $('boards').replaceChildren(...Object.keys(data.kinds).flatMap((kind) => {
    const these = boards.filter((board) => board.kind === kind && counts.has(board));
    if (!these.length) return [];
    return [h('div', { class: `kind ${kind}` }, h('h2', {}, data.kinds[kind]),
      data.about[kind] ? h('p', { class: 'hint' }, data.about[kind]) : null, tableOf(these, kind, counts))];
  }), ...(left < 0 ? [h('button', { type: 'button', id: 'more', click: () => { limit += MOST_ROWS; drawBoards(); if ($('more')) $('more').focus(); } }, `${many(-left, 'more row')}: show ${grouped(Math.min(MOST_ROWS, -left))}`)] : []));
  const filters = Object.entries(FILTERS).filter(([name]) => state[name]).map(([name, label]) => `${label.toLowerCase()} ${state[name]}`);
  $('printed').textContent = [`Benchmark ${state.tab}`, ...filters, state.q && `search “${state.q}”`, ...[['not', 'methods'], ['hide', 'columns']].filter(([name]) => unticked(name).size).map(([name, what]) => `without the ${what} ${[...unticked(name)].join(', ')}`),
    $('count').textContent, left < 0 ? `The first ${grouped(limit)} rows are printed.` : ''].filter(Boolean).join('; ');
}
