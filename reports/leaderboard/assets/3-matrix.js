// Method × task of the choice: what keeps vanilla's quality, and at what cost.

const LOSSES = [1, 5], MOST_BOARDS = 8, MOST_ALSO = 3;
const first = (board, ...costs) => costs.find((cost) => board.costs.includes(cost)) || costs.at(-1);
const orders = (board) => (board.family === 'decoder' ? [['tpot', 'answer', 'ratio'], ['held', 'memory']] : [['ratio', 'answer', 'tpot'], ['memory', 'held']]);
const timeOf = (board, aim) => (COSTS[aim].time && board.costs.includes(aim) ? aim : first(board, ...orders(board)[0]));
const memoryOf = (board, aim) => (!COSTS[aim].time && board.costs.includes(aim) ? aim : first(board, ...orders(board)[1]));
const aimOf = (board, aim) => (COSTS[aim].time ? timeOf(board, aim) : memoryOf(board, aim));

// Of vanilla's score: 1 is all of it.
function share(row) {
  const base = row.base ?? baseOf(row.board)?.value;
  if (row.board.atChance || row.value == null || !(base > 0)) return null;
  return row.isBase ? 1 : row.board.least ? base / row.value : row.value / base;
}
const lowest = (row) => (row.board.least || row.diffLo == null || !(row.base > 0) ? null : Math.max(0, 1 + row.diffLo / row.base));
const per100 = (value) => `${Math.round(100 * value)}\u00a0%`;
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

// With at least 99 % of vanilla's score, and cheaper; of latency also against exact attention on the same engine.
const wins = (row, aim) => good(row, 1) && cheaper(row, aimOf(row.board, aim));
const byEngine = (row, aim) => row.engineOnly != null && aimOf(row.board, aim) === 'ratio';

function linesOf(boards, aim, hidden) {
  const methods = [...new Set(boards.flatMap((board) => competing(board).map((row) => row.method)))].filter((name) => name === 'vanilla' || !hidden.has(name));
  const lines = methods.map((method) => {
    const its = boards.map((board) => setting(board, method, aim));
    const scored = its.filter((row) => row && !row.board.atChance && !failed(row) && row.value != null && row[aimOf(row.board, aim)] != null);
    const winning = scored.filter((row) => wins(row, aim)), engine = winning.filter((row) => byEngine(row, aim)).length;
    const ratios = its.filter((row) => row && row[aimOf(row.board, aim)] > 0).map((row) => row[aimOf(row.board, aim)]);
    const mean = ratios.length ? Math.exp(ratios.map(Math.log).reduce((a, b) => a + b) / ratios.length) : Infinity;
    return { method, its, wins: winning.length - engine, engine, of: scored.length, mean, least: its.filter(Boolean).every((row) => failed(row) || cheaper(row, aimOf(row.board, aim))) };
  });
  return lines.sort((a, b) => (b.method === 'vanilla') - (a.method === 'vanilla') || b.wins - a.wins || b.engine - a.engine || a.mean - b.mean);
}
const better = (aim) => (COSTS[aim].time ? 'faster' : 'smaller');
const badge = (boards) => (boards.every(toy) ? [' ', h('small', { class: 'toy' }, '(toy weights)')] : null);
const separated = (parts) => parts.flatMap((part, i) => [i ? ', ' : '', part]);

const MOST_NAMES = 4;
const tasksOf = (n, all) => `${n} of ${all} task${all === 1 ? '' : 's'}`;
// The headline: a sentence on quality kept, or, where none was measured, on cost alone.
function answer(chosen, lines) {
  const { model, at, host, found, boards, aim, measured } = chosen;
  const where = `${model}, ${at === 'all' ? 'all lengths' : tokens(at)}, ${processorOf(host)}`;
  const how = (measure) => [' Measure it: ', h('code', {}, commandFor(chosen, measure))];
  if (!found.length) return [`${where}: not measured.`, how('quick')];
  const both = how(['ratio', 'memory'].includes(aim) ? 'quick' : 'decoding');
  if (!measured.includes(aim)) return [`${where}: ${costName(aim)} not measured.`, both];
  const others = lines.filter((line) => line.method !== 'vanilla');
  const more = (list) => (list.length > MOST_NAMES ? ` and ${list.length - MOST_NAMES} more` : '');
  const scored = boards.filter((board) => board.rows.some((row) => row.value != null));
  if (!scored.some((board) => board.costs.includes(aimOf(board, aim)))) {
    const cheap = others.filter((line) => line.mean < Infinity && line.least).sort((a, b) => a.mean - b.mean);
    const named = cheap.slice(0, MOST_NAMES).map((line) => [`${line.method} ${times(line.mean)}`, badge(boards)]);
    return [`${where}: ${scored.length ? `quality and ${costName(aim)} not measured together` : 'quality not measured'}. `, cheap.length ? ['By ', costName(aim), ` alone, ${better(aim)} than vanilla: `, separated(named), more(cheap), '.'] : `No method is ${better(aim)} than vanilla.`,
      boards.every((board) => board.weights === 'random') ? '' : both];
  }
  const winners = others.filter((line) => line.wins || line.engine);
  const named = winners.slice(0, MOST_NAMES).map((line) => [
    `${line.method} on ${[line.wins && tasksOf(line.wins, line.of), line.engine && `${tasksOf(line.engine, line.of)} by its engine only`].filter(Boolean).join(' and on ')}`, badge(boards)]);
  const instead = [...new Set(scored.map((board) => aimOf(board, aim)))].filter((cost) => cost !== aim && measured.includes(cost));
  const rest = instead.length ? ` Where that wasn’t measured, it is ${instead.map(costName).join(' or ')}.` : '';
  const kept = `${where}: with at least 99 % of vanilla’s quality, `, gain = `${better(aim)} in ${costName(aim)}`;
  return winners.length ? [kept, gain, ': ', separated(named), more(winners), '.', rest] : [kept, 'no method is ', gain, badge(boards), '.', rest];
}

function drawMatrix() {
  const chosen = choice(), { boards, aim } = chosen, hidden = unticked('not');
  $('choice').hidden = !data.boards.length;
  if ($('choice').hidden) return;
  drawChoice(chosen);
  const lines = linesOf(boards, aim, hidden);
  $('answer').replaceChildren(...answer(chosen, lines).flat(Infinity).filter(Boolean));
  $('matrix').hidden = !boards.length;
  const count = ({ method, wins, engine, of }) => (method === 'vanilla' || !of ? '' : [`${wins} of ${of}`, engine ? h('small', {}, ` +${engine} by engine`) : null]);
  $('matrix').replaceChildren(h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Methods and tasks' },
    h('table', { class: 'matrix', keydown: cellKey }, h('caption', {}, h('span', {}, caption(chosen))), matrixHead(boards, aim),
      h('tbody', { class: 'best' }, LOSSES.map((loss) => h('tr', {}, h('th', { scope: 'row' }, `Best, at most ${loss} % lost`), h('td', {}), boards.map((board) => bestCell(board, loss, aim, hidden))))),
      h('tbody', {}, lines.map((line) => h('tr', {}, h('th', { scope: 'row' }, breakable(line.method, marker(line))),
        h('td', { class: 'wins' }, count(line)),
        line.its.map((row, i) => taskCells(row, boards[i], aim))))))));
}

const caption = ({ model, host, at }) => `${model}, ${at === 'all' ? 'all lengths' : tokens(at)}, machine ${machineName(host)}. Ratios are method ÷ vanilla: below 1 is better.`;

// What distinguishes boards of one task, as words.
const TELLING = { length: tokens, measure: String, model: String, weights: String, source: String, device: String, dtype: String, threads: (n) => `${n} thread${n === 1 ? '' : 's'}`, batch: (n) => `batch ${n}`,
  seed: (n) => `seed ${n}`, question: () => 'question after the cache is made', turns: (n) => `${n} turns`, n: (n) => `n = ${n}` };
// The columns of a board: [name, what it shows, its cost]. Quality alone has one, cost alone two.
function partsOf(board, aim) {
  const has = (name) => board.rows.some((row) => !row.isBase && row[name] != null);
  const cost = (name, asked) => (has(name) ? [[COSTS[name].short, asked, name]] : []);
  const parts = [...(has('value') ? [['Quality', 'quality']] : []), ...cost(timeOf(board, aim), 'latency'), ...cost(memoryOf(board, aim), 'memory')];
  return parts.length ? parts : [['Quality', 'quality']];
}
function matrixHead(boards, aim) {
  const names = boards.map((board) => {
    const namesakes = boards.filter((other) => other.task === board.task);
    return Object.keys(TELLING).filter((name) => board[name] != null && new Set(namesakes.map((other) => other[name])).size > 1).map((name) => TELLING[name](board[name])).join(', ');
  });
  return h('thead', {}, h('tr', {}, h('th', { scope: 'col', rowspan: 2 }, 'Method'), h('th', { scope: 'col', rowspan: 2, class: 'wins' }, `As good and ${better(aim)}`),
    boards.map((board, i) => h('th', { scope: 'colgroup', colspan: partsOf(board, aim).length, class: 'start' }, h('button', { type: 'button', class: 'number', 'aria-label': `Board ${board.title}`, click: () => openBoard(board) }, breakable(board.task || 'no task')),
      names[i] && [' ', h('small', {}, names[i])], badge([board]), (board.atChance || board.lacks) && h('small', { class: 'undecided' }, ` ${board.atChance ? 'vanilla at chance' : board.lacks}`)))),
  h('tr', {}, boards.map((board) => partsOf(board, aim).map(([name], i) => h('th', { scope: 'col', class: !i && 'start' }, name)))));
}

function bestCell(board, loss, aim, hidden) {
  const { winner, also, cost } = best(board, loss, aim, hidden), colspan = partsOf(board, aim).length;
  if (!winner) {
    const why = board.atChance ? 'not ranked' : !board.costs.length ? 'cost not measured' : baseOf(board)?.value == null ? 'quality not measured' : state.cap && +state.cap < 1 ? 'none fits' : 'vanilla';
    return h('td', { colspan, class: 'none start' }, why);
  }
  const low = lowest(winner);
  return h('td', { colspan, class: 'start' }, h('button', { type: 'button', class: 'number', click: () => openOrigin(winner, 'quality') }, h('b', {}, winner.label), ' ',
    h('strong', { class: 'cost' }, times(winner[cost], pairsOf(winner, cost))), ' ', h('small', {}, `${per100(share(winner) ?? 1)}${low == null ? '' : ` (≥\u00a0${per100(low)})`}${winner.engineOnly && cost === 'ratio' ? `, ${winner.engineOnly}` : ''}`)),
  also.length ? h('small', {}, ` or ${also.slice(0, MOST_ALSO).join(', ')}${also.length > MOST_ALSO ? ` and ${also.length - MOST_ALSO} more` : ''}`) : null);
}

function taskCells(row, board, aim) {
  const parts = partsOf(board, aim), whole = (content) => h('td', { colspan: parts.length, class: 'none start' }, content);
  if (!row) return whole('–');
  if (failed(row)) return whole(origin(row, 'method', ending(row), 0));
  const scored = parts[0][0] === 'Quality';
  const dim = scored && (board.atChance || row.atChance || !(row.isBase || good(row, LOSSES.at(-1)))) ? 'dim' : '';
  const setting = row.label === row.method ? '' : row.label.replace(row.method, '').replace(/^[· ]+/, '');
  const kept = share(row);
  const score = row.atChance ? '‡' : kept == null ? (row.value == null ? '–' : points(row.value, board)) : per100(kept);
  return parts.map(([, asked, cost], i) => {
    const words = !cost ? score : row[cost] == null ? '–' : times(row[cost], pairsOf(row, cost));
    const bold = cost && COSTS[cost].time && asGood(row, cost);
    return h('td', { class: `${i ? '' : 'start '}${dim}` }, words === '–' ? words : origin(row, asked, bold ? h('strong', {}, words) : words, i ? -1 : 0), !i && setting && h('small', {}, ` ${setting}`));
  });
}
const origin = (row, asked, words, tabindex) => h('button', { type: 'button', class: 'number', tabindex, click: () => openOrigin(row, asked) }, words);

function openBoard(board) {
  switchTab(board.benchmark, Object.fromEntries(['q', ...Object.keys(FILTERS)].map((name) => [name, ''])));
  shownBoard = board;
  drawPlot();
  const body = $(`board-${data.boards.indexOf(board)}`);
  if (body) body.scrollIntoView({ block: 'start' });
}
