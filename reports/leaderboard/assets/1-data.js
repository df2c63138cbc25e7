'use strict';
// Everything from rows reaches the document as text or as an attribute's value, never as HTML.

const $ = (id) => document.getElementById(id);
const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name, value);
    else if (value != null && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== ''));
  return element;
}
const h = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

async function load() {
  const bytes = Uint8Array.from(atob($('data').textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).json();
}

let data, rows, benchmarks, START, state;

function take(loaded) {
  data = loaded;
  rows = data.rows.id.map((_, i) => {
    const row = { i };
    for (const name in data.rows) row[name] = data.rows[name][i];
    row.board = data.boards[row.board];
    row.more = row.text == null ? {} : data.text[row.text];
    row.isBase = row.method === 'vanilla';
    if (row.isBase) {
      if (row.ms != null) row.ratio = row.ratioLo = row.ratioHi = 1;
      if (row.mib != null) row.memory = 1;
    }
    return row;
  });
  data.boards.forEach((board) => (board.rows = []));
  rows.forEach((row) => row.board.rows.push(row));
  benchmarks = [...new Set(data.boards.map((board) => board.benchmark))];
  START = { tab: benchmarks[0], task: '', length: '', device: '', weights: '', source: '', sort: 'rank', dir: '', x: 'ratio', row: '' };
  state = { ...START };
}

const grouped = (value) => value.toLocaleString('en-US');
const times = (ratio) => (ratio == null ? '–' : `×${ratio.toFixed(3)}`);
const small = (value) => (value == null ? '–' : value !== 0 && value < 0.001 ? value.toExponential(1) : `${value}`);
const some = (value, unit = '') => (value == null ? '–' : `${grouped(value)}${unit}`);
const within = (lo, hi, show) =>
  lo == null && hi == null ? '' : ` (${lo == null ? '–∞' : show(lo)} … ${hi == null ? '∞' : show(hi)})`;
const points = (value) => value.toFixed(1);
const signed = (value) => (value > 0 ? '+' : '') + value.toFixed(1).replace('-', '−');
const reach = (row) => (row.reach == null ? '' : `±${row.reach.toFixed(1)}`);
const rank = (row) => (row.first == null ? '–' : row.first === row.last ? `${row.first}` : `${row.first}–${row.last}`);
const ending = (row) =>
  row.longest != null ? `fits ${grouped(row.longest)} tokens` : row.status === 'ok' ? '' : data.ended[row.status] || row.status;
const failed = (row) => row.status !== 'ok';

const sameEngine = (row) => (row.engine == null ? '' : `; ${times(row.engine)}${row.engineVerdict === row.verdict ? '' : ` ${row.engineVerdict}`} ${row.more.engine_kernel.split(' ')[0]}`);

// `of` is what a column sorts by; `show` its [main text, smaller text, class, bold].
const COLUMNS = {
  rank: { head: 'Rank', of: (r) => r.first && r.first + r.last / 1e4, show: (r) => [rank(r)] },
  method: { head: 'Method', of: (r) => r.label, show: (r) => [r.label] },
  quality: { head: 'Quality', of: (r) => r.value, down: true,
    show: (r) => (r.value == null ? ['–'] : [points(r.value), `${reach(r)} ${r.atChance ? '‡' : ''}${r.ownWeights ? '§' : ''}`.trim()]) },
  latency: { head: 'Latency', of: (r) => r.ratio,
    show: (r) => (r.isBase && r.ms != null ? ['baseline'] : r.ratio == null ? ['–'] : [times(r.ratio), `${r.verdict || ''}${r.noisy ? '†' : ''}${r.engineOnly ? ` ${r.engineOnly}` : ''}${sameEngine(r)}`, r.engineOnly ? 'undecided' : r.verdict, r.asGood]) },
  memory: { head: 'Memory', of: (r) => r.memory, show: (r) => (r.isBase && r.mib != null ? ['baseline'] : [times(r.memory)]) },
  error: { head: 'Output error', of: (r) => r.error, show: (r) => [small(r.error)] },
  n: { head: 'n', of: (r) => r.n, down: true, show: (r) => [r.n == null ? '–' : `${r.n}`] },
};
const FILTERS = { task: 'Task', length: 'Length', device: 'Device', weights: 'Weights', source: 'Source' };
