// Method × task of one machine and length: what keeps vanilla's quality, and at what cost.

const LOSSES = [1, 5], MOST_BOARDS = 8, MOST_ALSO = 3;
const CAPS = { '': 'any', 1: 'vanilla’s', 0.75: '¾ of vanilla’s', 0.5: 'half of vanilla’s', 0.25: 'a quarter', 0.125: 'an eighth' };

function most(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  return [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || (b > a ? 1 : -1))[0];
}

const isPartial = (board) => board.kind.endsWith('_partial');
// Boards with speed and quality; those without only where there are no others.
function comparable() {
  const complete = data.boards.filter((board) => !isPartial(board) && board.kind !== 'random');
  return complete.length ? complete : data.boards;
}
function choice() {
  const boards = comparable();
  const hosts = [...new Set(boards.map((board) => board.host))];
  const host = hosts.includes(state.on) ? state.on : most(boards.map((board) => board.host));
  const there = boards.filter((board) => board.host === host);
  const lengths = valuesOf('length', there);
  const at = state.at === 'all' || lengths.includes(state.at) ? state.at : String(most(there.map((board) => board.length)));
  const found = at === 'all' ? there : there.filter((board) => String(board.length) === at);
  const costs = Object.keys(COSTS).filter((cost) => found.some((board) => board.costs.includes(cost)));
  return { hosts, host, lengths, at, found, boards: found.slice(0, MOST_BOARDS), costs, aim: costs.includes(state.aim) ? state.aim : '' };
}
const first = (board, ...costs) => costs.find((cost) => board.costs.includes(cost)) || costs.at(-1);
const timeOf = (board, aim) => (aim && COSTS[aim].time && board.costs.includes(aim) ? aim : first(board, 'answer', 'tpot', 'ratio'));
const memoryOf = (board, aim) => (aim && !COSTS[aim].time && board.costs.includes(aim) ? aim : first(board, 'held', 'memory'));
const aimOf = (board, aim) => (aim && !COSTS[aim].time ? memoryOf(board, aim) : timeOf(board, aim));

// Of vanilla's score: 1 is all of it.
function share(row) {
  const base = row.base ?? baseOf(row.board)?.value;
  if (row.board.atChance || row.value == null || !(base > 0)) return null;
  return row.isBase ? 1 : row.board.least ? base / row.value : row.value / base;
}
const lowest = (row) => (row.board.least || row.diffLo == null || !(row.base > 0) ? null : Math.max(0, 1 + row.diffLo / row.base));
const per100 = (value) => `${Math.round(100 * value)}\u00a0%`;
const toy = (board) => ['embedded', 'random'].includes(board.weights);
function good(row, loss) {
  if (failed(row) || row.board.atChance || row.atChance) return false;
  return row.keeps || (loss > 1 && share(row) >= 1 - loss / 100);
}
const cheaper = (row, cost) => (COSTS[cost].time ? row[COSTS[cost].verdict] === 'faster' : row[cost] < 0.99);
const underCap = (row, aim) => !state.cap || row[memoryOf(row.board, aim)] <= +state.cap;

function best(board, loss, aim, hidden) {
  const cost = aimOf(board, aim);
  const fits = competing(board).filter((row) => !row.isBase && !hidden.has(row.method) && good(row, loss) && cheaper(row, cost) && underCap(row, aim));
  fits.sort((a, b) => a[cost] - b[cost] || (share(b) || 0) - (share(a) || 0));
  const [winner] = fits;
  const { lo, hi } = COSTS[cost];
  const equal = winner ? fits.filter((row) => row !== winner && (lo ? row[lo] <= winner[hi] : row[cost] <= winner[cost] * 1.01)) : [];
  return { winner, also: [...new Set(equal.map((row) => row.label))], cost };
}

// The setting of a method that stands for it: see “How to read it”.
function setting(board, method, aim) {
  const cost = aimOf(board, aim);
  const its = competing(board).filter((row) => row.method === method);
  const cheap = (list) => list.filter((row) => row[cost] != null).sort((a, b) => a[cost] - b[cost])[0];
  for (const loss of LOSSES) {
    const fits = its.filter((one) => good(one, loss) && underCap(one, aim));
    const row = cheap(fits.filter((one) => cheaper(one, cost))) || cheap(fits);
    if (row) return row;
  }
  return its.sort((a, b) => failed(a) - failed(b) || (share(b) ?? -1) - (share(a) ?? -1) || (a[cost] ?? Infinity) - (b[cost] ?? Infinity))[0];
}

function drawMatrix() {
  const chosen = choice(), { boards, aim } = chosen, hidden = unticked('not');
  $('choice').hidden = !boards.length;
  if (!boards.length) return;
  drawChoice(chosen);
  const methods = [...new Set(boards.flatMap((board) => competing(board).map((row) => row.method)))].filter((name) => name === 'vanilla' || !hidden.has(name));
  // No recommendation rests on toy weights where there are others.
  const real = boards.filter((board) => !toy(board));
  const telling = real.length ? real : boards;
  const lines = methods.map((method) => {
    const its = boards.map((board) => setting(board, method, aim));
    const ranked = its.filter((row) => row && telling.includes(row.board) && !row.board.atChance && !failed(row));
    const wins = ranked.filter((row) => good(row, 1) && cheaper(row, aimOf(row.board, aim))).length;
    const logs = its.filter((row) => row && row[aimOf(row.board, aim)] > 0).map((row) => Math.log(row[aimOf(row.board, aim)]));
    return { method, its, wins, of: ranked.length, mean: logs.length ? logs.reduce((a, b) => a + b) / logs.length : Infinity };
  });
  lines.sort((a, b) => (b.method === 'vanilla') - (a.method === 'vanilla') || b.wins - a.wins || a.mean - b.mean);
  const weights = real.length ? '' : ' (toy weights)';
  const better = aim && !COSTS[aim].time ? 'smaller' : 'faster';
  const winners = lines.filter((line) => line.wins && line.method !== 'vanilla');
  const task = (n) => `${n} task${n === 1 ? '' : 's'}`;
  $('answer').textContent = winners.length
    ? `With at least 99 % of vanilla’s quality, ${winners.slice(0, 4).map((line, i) => `${line.method}${i ? '' : ` is ${better}`} on ${line.wins} of ${i ? line.of : task(line.of)}`).join(', ')}${winners.length > 4 ? `, and ${winners.length - 4} more on some` : ''}${weights}.`
    : `With at least 99 % of vanilla’s quality, no method is ${better} here${weights}.`;
  $('matrix').replaceChildren(h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Methods and tasks' },
    h('table', { class: 'matrix', keydown: cellKey }, h('caption', {}, caption(chosen)), matrixHead(boards, aim, better),
      h('tbody', { class: 'best' }, LOSSES.map((loss) => h('tr', {}, h('th', { scope: 'row' }, `Best, at most ${loss} % lost`), h('td', {}), boards.map((board) => bestCell(board, loss, aim, hidden))))),
      h('tbody', {}, lines.map((line) => h('tr', {}, h('th', { scope: 'row' }, marker(line), breakable(line.method)),
        h('td', { class: 'wins' }, line.method === 'vanilla' ? '' : `${line.wins} of ${line.of}`),
        line.its.map((row, i) => taskCells(row, boards[i], aim))))))));
}

function drawChoice({ hosts, host, lengths, at, found, boards, costs, aim }) {
  const focused = document.activeElement && document.activeElement.id;
  const machineOf = (name) => data.host[data.boards.find((board) => board.host === name).machine].machine;
  const lengthsOf = [...lengths.map((value) => [value, tokens(value)]), ...(lengths.length > 1 ? [['all', 'all lengths']] : [])];
  $('choice-form').replaceChildren(
    selectOf('choice-on', 'Machine', hosts.map((name) => [name, `${machineOf(name).split(', ')[0]} (${name})`]), host, (value) => change({ on: value, at: '' })),
    selectOf('choice-at', 'Length', lengthsOf, at, (value) => change({ at: value })),
    selectOf('choice-aim', 'Least', [['', 'time'], ...costs.map((cost) => [cost, COSTS[cost].name.toLowerCase().replace('kv', 'KV')])], aim, (value) => change({ aim: value })),
    selectOf('choice-cap', 'Memory at most', Object.entries(CAPS).sort(([a], [b]) => (+b || 9) - (+a || 9)), state.cap in CAPS ? state.cap : '', (value) => change({ cap: value })));
  if (focused && focused.startsWith('choice-') && $(focused)) $(focused).focus();
  const left = data.boards.filter((board) => board.host === host && isPartial(board) && (at === 'all' || String(board.length) === at)).length;
  $('choice-note').textContent = [found.length > boards.length && `${boards.length} of ${found.length} boards are shown: a length chooses.`,
    left && `Not here: ${left} board${left === 1 ? '' : 's'} of this machine without speed or without quality.`].filter(Boolean).join(' ');
}
const caption = ({ host, at }) => `Machine ${host}, ${at === 'all' ? 'all lengths' : tokens(at)}. Ratios are method ÷ vanilla: below 1 is better.`;

const TELLING = ['length', 'measure', 'model', 'weights', 'source', 'device', 'dtype', 'threads', 'batch', 'seed', 'question', 'turns', 'n'];
function matrixHead(boards, aim, better) {
  const names = boards.map((board) => {
    const namesakes = boards.filter((other) => other.task === board.task);
    return TELLING.filter((name) => new Set(namesakes.map((other) => other[name])).size > 1).map((name) => (name === 'length' ? tokens(board.length) : `${board[name]}`)).join(', ');
  });
  return h('thead', {}, h('tr', {}, h('th', { scope: 'col', rowspan: 2 }, 'Method'), h('th', { scope: 'col', rowspan: 2, class: 'wins' }, `As good and ${better}`),
    boards.map((board, i) => h('th', { scope: 'colgroup', colspan: 3, class: 'start' }, h('button', { type: 'button', class: 'number', 'aria-label': `Board ${board.title}`, click: () => openBoard(board) }, board.task || 'no task'),
      names[i] && [' ', h('small', {}, names[i])], toy(board) && [' ', h('small', {}, 'toy weights')], (board.atChance || board.lacks) && h('small', { class: 'undecided' }, ` ${board.atChance ? 'vanilla at chance' : board.lacks}`)))),
  h('tr', {}, boards.map((board) => ['Quality', COSTS[timeOf(board, aim)].short, COSTS[memoryOf(board, aim)].short].map((name, i) => h('th', { scope: 'col', class: !i && 'start' }, name)))));
}

function bestCell(board, loss, aim, hidden) {
  const { winner, also, cost } = best(board, loss, aim, hidden);
  if (!winner) {
    const why = board.atChance ? 'not ranked' : baseOf(board)?.value == null ? 'no quality' : state.cap && +state.cap < 1 ? 'none fits' : 'vanilla';
    return h('td', { colspan: 3, class: 'none start' }, why);
  }
  const low = lowest(winner);
  return h('td', { colspan: 3, class: 'start' }, h('button', { type: 'button', class: 'number', click: () => openOrigin(winner, 'quality') }, h('b', {}, winner.label), ' ',
    h('strong', { class: 'cost' }, times(winner[cost], winner[COSTS[cost].pairs])), ' ', h('small', {}, `${per100(share(winner) ?? 1)}${low == null ? '' : ` (≥\u00a0${per100(low)})`}${winner.engineOnly && cost === 'ratio' ? `, ${winner.engineOnly}` : ''}`)),
  also.length ? h('small', {}, ` or ${also.slice(0, MOST_ALSO).join(', ')}${also.length > MOST_ALSO ? ` and ${also.length - MOST_ALSO} more` : ''}`) : null);
}

function taskCells(row, board, aim) {
  if (!row) return h('td', { colspan: 3, class: 'none start' }, '–');
  if (failed(row)) return h('td', { colspan: 3, class: 'none start' }, origin(row, 'method', ending(row), 0));
  const [time, memory] = [timeOf(board, aim), memoryOf(board, aim)];
  const dim = board.atChance || row.atChance || !(row.isBase || good(row, LOSSES.at(-1))) ? 'dim' : '';
  const part = row.label === row.method ? '' : row.label.replace(row.method, '').replace(/^[· ]+/, '');
  const kept = share(row);
  const words = row.atChance ? '‡' : kept == null ? (row.value == null ? '–' : points(row.value, board)) : per100(kept);
  return [
    h('td', { class: `start ${dim}` }, origin(row, 'quality', words, 0), part && h('small', {}, ` ${part}`)),
    h('td', { class: dim }, row[time] == null ? '–' : origin(row, 'latency', asGood(row, time) ? h('strong', {}, times(row[time], row[COSTS[time].pairs])) : times(row[time], row[COSTS[time].pairs]), -1)),
    h('td', { class: dim }, row[memory] == null ? '–' : origin(row, 'memory', times(row[memory]), -1)),
  ];
}
const origin = (row, asked, words, tabindex) => h('button', { type: 'button', class: 'number', tabindex, click: () => openOrigin(row, asked) }, words);

function openBoard(board) {
  switchTab(board.benchmark, Object.fromEntries(['q', ...Object.keys(FILTERS)].map((name) => [name, ''])));
  shownBoard = board;
  drawPlot();
  const body = $(`board-${data.boards.indexOf(board)}`);
  if (body) body.scrollIntoView({ block: 'start' });
}
