'use strict';
// Everything from rows reaches the document as text or as an attribute's value, never as HTML.

const $ = (id) => document.getElementById(id);
const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name, value);
    else if (value != null && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false && child !== ''));
  return element;
}
const h = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

const ALL = 'all benchmarks';
let data, rows, benchmarks, START, state;

// What a method costs, as a ratio to vanilla's; those of `time` have a verdict and an interval.
const COSTS = {
  ratio: { name: 'Latency', short: 'Latency', time: true, better: 'faster', verdict: 'verdict', lo: 'ratioLo', hi: 'ratioHi', pairs: 'pairs', base: 'ms' },
  tpot: { name: 'Time per token', short: 'TPOT', time: true, better: 'faster', verdict: 'tpotVerdict', lo: 'tpotLo', hi: 'tpotHi', pairs: 'tpotPairs', base: 'tpotMs' },
  answer: { name: 'Whole answer', short: 'Answer', time: true, better: 'faster', verdict: 'answerVerdict', lo: 'answerLo', hi: 'answerHi', pairs: 'tpotPairs', base: 'answerMs' },
  memory: { name: 'Peak memory', short: 'Memory', better: 'smaller', base: 'mib' },
  held: { name: 'KV held', short: 'KV held', better: 'smaller', base: 'heldMib' },
  read: { name: 'KV read', short: 'KV read', better: 'smaller', base: 'readMib' },
};

function take(loaded) {
  data = loaded;
  const names = Object.keys(data.rows);
  rows = data.rows.id.map((_, i) => completed({ i, ...Object.fromEntries(names.map((name) => [name, data.rows[name][i]])) }));
  data.boards.forEach((board) => (board.rows = []));
  rows.forEach((row) => row.board.rows.push(row));
  for (const board of data.boards.filter((one) => one.vanilla)) {
    const row = completed({ ...board.vanilla, i: rows.length, id: '', beside: true });
    board.rows.unshift(row);
    rows.push(row);
  }
  for (const board of data.boards) board.costs = Object.keys(COSTS).filter((cost) => board.rows.some((row) => !row.isBase && row[cost] != null));
  benchmarks = [...new Set(data.boards.map((board) => board.benchmark)), ALL];
  START = { tab: benchmarks[0], q: '', not: '', hide: '', task: '', length: '', device: '', model: '', weights: '', source: '', host: '',
    sort: 'rank', dir: '', x: 'ratio', y: 'ratio', family: '', of: '', at: '', aim: '', on: '', cap: '', row: '' };
  state = { ...START };
}
function completed(row) {
  row.board = data.boards[row.board];
  row.more = row.text == null ? {} : data.text[row.text];
  row.isBase = row.method === 'vanilla';
  if (row.isBase) for (const [cost, { base, lo, hi }] of Object.entries(COSTS)) if (row[base] != null) row[cost] = row[lo] = row[hi] = 1;
  return row;
}
const baseOf = (board) => board.rows.find((row) => row.isBase && !failed(row));
// Faster at vanilla's quality: of the latency Python says it.
const pairsOf = (row, cost) => (COSTS[cost].pairs ? row[COSTS[cost].pairs] : FEW_PAIRS);
const asGood = (row, cost) => (cost === 'ratio' ? row.asGood : row.keeps && !row.oracle && row[COSTS[cost].verdict] === 'faster');
// An oracle shows a ceiling: nobody runs it, so it is no choice.
const competing = (board) => board.rows.filter((row) => !row.oracle);

const grouped = (value) => value.toLocaleString('en-US');
// Three significant figures; of few pairs two, and their number.
const FEW_PAIRS = 5;
function figure(value, digits) {
  const decimals = value > 0 ? digits - 1 - Math.floor(Math.log10(+value.toPrecision(digits))) : 0;
  return (+value.toPrecision(digits)).toFixed(Math.max(0, decimals));
}
function times(ratio, pairs = FEW_PAIRS) {
  if (ratio == null) return '–';
  return pairs != null && pairs < FEW_PAIRS ? `×${figure(ratio, 2)} (${pairs} pair${pairs === 1 ? '' : 's'})` : `×${figure(ratio, 3)}`;
}
const small = (value) => (value == null ? '–' : value !== 0 && value < 0.001 ? value.toExponential(1) : `${value}`);
const some = (value, unit = '') => (value == null ? '–' : `${grouped(value)}${unit}`);
const within = (lo, hi, show) =>
  lo == null && hi == null ? '' : ` (${lo == null ? '–∞' : show(lo)} … ${hi == null ? '∞' : show(hi)})`;
// Losses, such as nats per token, have three decimals.
const points = (value, board) => value.toFixed(board.least ? 3 : 1);
const signed = (value, board) => (value > 0 ? '+' : '') + points(value, board).replace('-', '−');
const reach = (row) => (row.reach == null ? '' : `±${points(row.reach, row.board)}`);
const rank = (row) => (row.first == null ? '–' : row.first === row.last ? `${row.first}` : `${row.first}–${row.last}`);
const ending = (row) =>
  row.longest != null ? `fits ${row.longest}` : row.status === 'ok' ? '' : data.ended[row.status] || row.status;
const failed = (row) => row.status !== 'ok';

const sameEngine = (row) => (row.engine == null ? '' : `; ${times(row.engine)}${row.engineVerdict === row.verdict ? '' : ` ${row.engineVerdict}`} ${row.more.engine_kernel.split(' ')[0]}`);

function costOf(row, cost) {
  if (row[cost] == null) return ['–'];
  if (row.isBase) return ['baseline'];
  const { verdict } = COSTS[cost];
  return [times(row[cost], pairsOf(row, cost)), row[verdict], row[verdict], verdict && asGood(row, cost)];
}

// `where` names what a column needs: without any such figure it isn't there. `of` is what a column sorts by; `show` its [main text, smaller text, class, bold].
const COLUMNS = {
  rank: { head: 'Rank', where: 'first', of: (r) => (failed(r) ? null : r.board.rows.indexOf(r)), show: (r) => [rank(r)] },
  method: { head: 'Method', of: (r) => r.label, show: (r) => [r.label] },
  quality: { head: 'Quality', of: (r) => (r.board.least && r.value != null ? -r.value : r.value), down: true,
    show: (r) => (r.value == null ? ['–'] : [points(r.value, r.board), `${reach(r)} ${r.atChance ? '‡' : ''}${r.ownWeights ? '§' : ''}`.trim()]) },
  latency: { head: 'Latency', of: (r) => r.ratio,
    show: (r) => (r.isBase && r.ms != null ? ['baseline'] : r.ratio == null ? ['–'] : [times(r.ratio, r.pairs), `${r.verdict || ''}${r.noisy ? '†' : ''}${r.engineOnly ? ` ${r.engineOnly}` : ''}${sameEngine(r)}`, r.engineOnly ? 'undecided' : r.verdict, r.asGood]) },
  memory: { head: 'Memory', of: (r) => r.memory, show: (r) => (r.isBase && r.mib != null ? ['baseline'] : [times(r.memory)]) },
  ...Object.fromEntries(['tpot', 'answer', 'held', 'read'].map((cost) => [cost, { head: COSTS[cost].name, of: (r) => r[cost], where: cost, show: (r) => costOf(r, cost) }])),
  error: { head: 'Output error', of: (r) => r.error, show: (r) => [small(r.error)] },
  n: { head: 'n', of: (r) => r.n, down: true, show: (r) => [r.n == null ? '–' : `${r.n}`] },
  kernel: { head: 'Kernel', of: (r) => r.kernel, where: 'kernel', show: (r) => [r.kernel || '–'] },
};
const FILTERS = { task: 'Task', length: 'Length', device: 'Device', model: 'Model', weights: 'Weights', source: 'Source', host: 'Machine' };
