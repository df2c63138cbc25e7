'use strict';
// Everything from rows reaches the document as text or as an attribute's value, never as HTML.
(async () => {
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
  const { dataset: { how }, textContent } = $('data');
  if (how === 'plain') return JSON.parse(textContent);
  const bytes = Uint8Array.from(atob(textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return JSON.parse(await new Response(stream).text());
}

// ---------------------------------------------------------------------------- data and its words

let data;
try {
  data = await load();
} catch (error) {
  $('summary').append(` This browser can’t unpack the page’s data (${error.message}): only the tables below can be read.`);
  return;
}
const rows = data.rows.id.map((_, i) => {
  const row = { i };
  for (const name in data.rows) row[name] = data.rows[name][i];
  row.board = data.boards[row.board];
  row.more = row.text == null ? {} : data.text[row.text];
  if (row.isBase) {
    if (row.ms != null) row.ratio = row.ratioLo = row.ratioHi = 1;
    if (row.mib != null) row.memory = 1;
  }
  return row;
});
data.boards.forEach((board) => (board.rows = []));
rows.forEach((row) => row.board.rows.push(row));
const benchmarks = [...new Set(data.boards.map((board) => board.benchmark))];

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

// `of` is what a column sorts by; `show` its [main text, smaller text, class].
const COLUMNS = {
  rank: { head: 'Rank', of: (r) => r.first && r.first + r.last / 1e4, show: (r) => [rank(r)] },
  method: { head: 'Method', of: (r) => r.label, show: (r) => [r.label] },
  quality: { head: 'Quality', of: (r) => r.value, down: true,
    show: (r) => (r.value == null ? ['–'] : [points(r.value), reach(r)]) },
  latency: { head: 'Latency', of: (r) => r.ratio,
    show: (r) => (r.isBase && r.ms != null ? ['baseline'] : r.ratio == null ? ['–'] : [times(r.ratio), `${r.verdict || ''}${r.noisy ? '†' : ''}`, r.verdict]) },
  memory: { head: 'Memory', of: (r) => r.memory, show: (r) => (r.isBase && r.mib != null ? ['baseline'] : [times(r.memory)]) },
  error: { head: 'Output error', of: (r) => r.error, show: (r) => [small(r.error)] },
  n: { head: 'n', of: (r) => r.n, down: true, show: (r) => [r.n == null ? '–' : `${r.n}`] },
};
const FILTERS = { task: 'Task', length: 'Length', device: 'Device', weights: 'Weights', source: 'Source' };

// --------------------------------------------------------------------------- state, in the address

const START = { tab: benchmarks[0], task: '', length: '', device: '', weights: '', source: '', sort: 'rank', dir: '', x: 'ratio', row: '' };
let state;
let shownBoard = null;

function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  state = { ...START };
  for (const name in START) if (asked.has(name)) state[name] = asked.get(name);
  if (!benchmarks.includes(state.tab)) state.tab = START.tab;
  if (!Object.hasOwn(COLUMNS, state.sort)) state.sort = START.sort;
  if (!['ratio', 'memory'].includes(state.x)) state.x = START.x;
  if (!['ascending', 'descending'].includes(state.dir)) state.dir = natural(state.sort);
  for (const name in FILTERS) if (!choices(name).includes(state[name])) state[name] = '';
}
const natural = (column) => (COLUMNS[column].down ? 'descending' : 'ascending');

function writeAddress() {
  const told = Object.entries(state).filter(([name, value]) => value !== START[name] && !(name === 'dir' && value === natural(state.sort)));
  history.replaceState(null, '', `#${new URLSearchParams(told)}`);
}

function choices(name) {
  const boards = name === 'task' ? data.boards.filter((board) => board.benchmark === state.tab) : data.boards;
  const values = [...new Set(boards.map((board) => board[name]).filter((value) => value != null))];
  return values.sort((a, b) => (typeof a === 'number' ? a - b : a < b ? -1 : 1)).map(String);
}

function change(changes) {
  Object.assign(state, changes);
  writeAddress();
  draw();
}

const visible = () => data.boards.filter((board) => board.benchmark === state.tab &&
  Object.keys(FILTERS).every((name) => !state[name] || String(board[name]) === state[name]));

// --------------------------------------------------------------------------------------- controls

function drawTabs() {
  $('tabs').replaceChildren(...benchmarks.map((name, i) => {
    const on = name === state.tab;
    const count = rows.filter((row) => row.board.benchmark === name).length;
    return h('button', { type: 'button', role: 'tab', id: `tab-${i}`, 'aria-selected': `${on}`, 'aria-controls': 'panel',
      tabindex: on ? 0 : -1, click: () => openTab(i), keydown: tabKey }, name, ' ', h('small', {}, grouped(count)));
  }));
  fill($('panel'), { role: 'tabpanel', 'aria-labelledby': `tab-${benchmarks.indexOf(state.tab)}` }, []);
}
function openTab(i) {
  shownBoard = null;
  change({ tab: benchmarks[i], task: '' });
  $(`tab-${i}`).focus();
}
function tabKey(event) {
  const at = benchmarks.indexOf(state.tab), n = benchmarks.length;
  const to = { ArrowRight: (at + 1) % n, ArrowLeft: (at + n - 1) % n, Home: 0, End: n - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  openTab(to);
}

function drawFilters() {
  const focused = document.activeElement && document.activeElement.id;
  const selects = Object.entries(FILTERS).map(([name, label]) => {
    const select = h('select', { id: `filter-${name}`, change: (event) => change({ [name]: event.target.value }) },
      h('option', { value: '' }, 'all'),
      choices(name).map((value) => h('option', { value }, name === 'length' ? `${grouped(+value)} tokens` : value)));
    select.value = state[name];
    return h('label', {}, label, ' ', select);
  });
  const none = Object.keys(FILTERS).every((name) => !state[name]);
  const reset = h('button', { type: 'button', id: 'reset', disabled: none,
    click: () => { change(Object.fromEntries(Object.keys(FILTERS).map((name) => [name, '']))); $('filter-task').focus(); } }, 'Show all');
  $('filters').replaceChildren(...selects, reset);
  if (focused && focused.startsWith('filter-')) $(focused).focus();
}

// ----------------------------------------------------------------------------------------- tables

function ordered(board) {
  const { of } = COLUMNS[state.sort];
  const sign = state.dir === 'ascending' ? 1 : -1;
  const has = (row) => of(row) != null;
  return [...board.rows].sort((a, b) => {
    if (!has(a) || !has(b)) return has(b) - has(a) || a.i - b.i;
    const [x, y] = [of(a), of(b)];
    return sign * (typeof x === 'string' ? x.localeCompare(y) : x - y) || a.i - b.i;
  });
}

function tableOf(boards, kind) {
  const head = h('tr', {}, Object.entries(COLUMNS).map(([name, column]) => {
    const on = name === state.sort;
    const turned = on && state.dir === 'ascending' ? 'descending' : 'ascending';
    return h('th', { scope: 'col', class: name, 'aria-sort': on && state.dir }, h('button', { type: 'button', 'data-sort': name,
      click: () => { change({ sort: name, dir: on ? turned : natural(name) }); refocus(kind, name); } }, column.head));
  }));
  const bodies = boards.map((board) => h('tbody', {},
    h('tr', { class: 'board' }, h('th', { colspan: 7, scope: 'rowgroup' }, h('div', { class: 'title' }, heading(board),
      drawable(board).length ? h('button', { type: 'button', class: 'plot-this', 'aria-label': `Plot ${board.title}`, 'data-board': data.boards.indexOf(board),
        click: () => { shownBoard = board; drawPlot(); $('plot').scrollIntoView({ block: 'nearest' }); } }, 'Plot') : null))),
    ordered(board).map(rowOf)));
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': data.kinds[kind] },
    h('table', { 'data-kind': kind, keydown: cellKey }, h('thead', {}, head), bodies));
}
function heading(board) {
  const [first, ...rest] = board.title.split(' · ');
  return h('span', {}, h('b', {}, first), rest.length ? ` · ${rest.join(' · ')}` : '');
}
const refocus = (kind, name) => document.querySelector(`table[data-kind="${kind}"] [data-sort="${name}"]`).focus();

function rowOf(row) {
  const cells = Object.entries(COLUMNS).map(([name, column]) => {
    const [main, small, look] = column.show(row);
    const method = name === 'method';
    const inside = main === '–' ? [main] : [
      h('button', { type: 'button', class: 'number', tabindex: method ? 0 : -1, click: () => openOrigin(row, name) },
        method ? marker(row) : null, method ? breakable(main) : main, small ? ' ' : null, small ? h('small', { class: look }, small) : null),
      method && ending(row) ? h('b', { class: failed(row) ? 'ended' : 'fits' }, ending(row)) : null];
    return h(method ? 'th' : 'td', { class: name, scope: method && 'row' }, inside);
  });
  return h('tr', { 'data-row': row.i, class: failed(row) && 'failed', mouseenter: () => light(row), mouseleave: () => light(null),
    focusin: () => light(row), focusout: () => light(null) }, cells);
}

// A narrow column breaks a name after its underscores.
const breakable = (name) => h('span', {}, name.split(/(?<=_)/).flatMap((part, i) => (i ? [h('wbr'), part] : [part])));

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
  const boards = visible();
  const shown = boards.flatMap((board) => board.rows);
  const bad = shown.filter(failed).length;
  const many = (n, what) => `${grouped(n)} ${what}${n === 1 ? '' : 's'}`;
  $('count').textContent = shown.length
    ? `${many(shown.length, 'row')} on ${many(boards.length, 'board')}${bad ? `, ${bad} without a result` : ''}. ` +
      `Sorted by ${COLUMNS[state.sort].head.toLowerCase()}, ${state.dir}.`
    : 'No row has all of these. “Show all” takes the filters away.';
  $('boards').replaceChildren(...Object.keys(data.kinds).flatMap((kind) => {
    const these = boards.filter((board) => board.kind === kind);
    if (!these.length) return [];
    return [h('div', { class: `kind ${kind}` }, h('h2', {}, data.kinds[kind]),
      data.about[kind] ? h('p', { class: 'hint' }, data.about[kind]) : null, tableOf(these, kind))];
  }));
}

// ------------------------------------------------------------------------------------------- plot

const SHAPES = {
  circle: 'M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z', ring: 'M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0zM-2 0a2 2 0 1 1 4 0a2 2 0 1 1-4 0z',
  square: 'M-4.6-4.6h9.2v9.2h-9.2z', diamond: 'M0-6.2L6.2 0L0 6.2L-6.2 0z', up: 'M0-6L5.8 4.6H-5.8z', down: 'M0 6L5.8-4.6H-5.8z',
  hexagon: 'M-5.8 0L-2.9-5h5.8L5.8 0L2.9 5h-5.8z', star: 'M0-6.4L1.7-2H6.2L2.6 .9L4 5.6L0 2.8L-4 5.6L-2.6 .9L-6.2-2H-1.7z',
  plus: 'M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z', cross: 'M-6-3.6L-3.6-6L0-2.4L3.6-6L6-3.6L2.4 0L6 3.6L3.6 6L0 2.4L-3.6 6L-6 3.6L-2.4 0z',
};
function shape(row) {
  const [colour, name] = data.looks[row.method] || ['currentColor', 'circle'];
  return svg('path', { d: SHAPES[name], fill: colour, class: 'shape', 'fill-rule': 'evenodd' });
}
const marker = (row) => svg('svg', { viewBox: '-8 -8 16 16', class: 'marker', 'aria-hidden': 'true' }, shape(row));

const LOG = { log: true, better: 'left' };
const AXES = {
  ratio: { ...LOG, of: (r) => [r.ratio, r.ratioLo, r.ratioHi], name: 'Latency ÷ vanilla' },
  memory: { ...LOG, of: (r) => [r.memory, null, null], name: 'Peak memory ÷ vanilla' },
  quality: { of: (r) => [r.value, r.lo, r.hi], name: 'Quality' },
};
function axesOf(board) {
  const scored = board.kind !== 'random' && board.rows.some((row) => row.value != null);
  return scored ? [AXES[state.x], AXES.quality, scored] : [AXES.ratio, AXES.memory, scored];
}
const drawable = (board) => {
  const [x, y] = axesOf(board);
  return board.rows.filter((row) => x.of(row)[0] > 0 && y.of(row)[0] != null);
};

function scale(axis, spans, from, to) {
  const forward = axis.log ? Math.log : (value) => value;
  const middle = spans.map((span) => span[0]);
  if (axis.log) middle.push(1);
  let lo = Math.min(...middle), hi = Math.max(...middle);
  // An end far beyond all figures would squeeze them; its bar then runs out of the picture.
  for (const [, l, u] of spans) {
    if (l != null && (!axis.log || l > lo / 2)) lo = Math.min(lo, l);
    if (u != null && (!axis.log || u < hi * 2)) hi = Math.max(hi, u);
  }
  let [a, b] = [forward(lo), forward(hi)];
  const least = axis.log ? 0.2 : 5;
  const pad = Math.max((b - a) * 0.09, (least - (b - a)) / 2);
  [a, b] = [a - pad, b + pad];
  const at = (value) => from + ((forward(value) - a) / (b - a)) * (to - from);
  const clamp = (value) => Math.max(Math.min(from, to), Math.min(Math.max(from, to), value));
  return Object.assign(at, { clamp: (value) => clamp(at(value)), ticks: axis.log ? logTicks(a, b) : evenTicks(a, b) });
}
function evenTicks(a, b) {
  const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50].find((size) => (b - a) / size <= 6) || 100;
  const found = [];
  for (let i = Math.ceil(a / step); i * step <= b; i++) found.push(+(i * step).toFixed(6));
  return found;
}
function logTicks(a, b) {
  const found = [], fine = [];
  for (let exponent = -6; exponent <= 6; exponent++) for (const digit of [1, 1.5, 2, 3, 5, 7]) {
    const value = digit * 10 ** exponent;
    if (Math.log(value) < a || Math.log(value) > b) continue;
    fine.push(value);
    if ([1, 2, 5].includes(digit)) found.push(value);
  }
  if (found.length >= 3) return found.length > 7 ? found.filter((value) => /^0?\.?0*1/.test(String(value))) : found;
  return fine.length >= 2 ? fine : evenTicks(Math.exp(a), Math.exp(b)).filter((value) => value > 0);
}

function drawPlot() {
  const boards = visible().filter((board) => drawable(board).length);
  $('plot').hidden = !boards.length;
  if (!boards.length) return;
  if (!boards.includes(shownBoard)) shownBoard = boards.find((board) => drawable(board).length > 1) || boards[0];
  const select = $('plot-board');
  select.replaceChildren(...boards.map((board, i) => h('option', { value: i }, board.title)));
  select.value = boards.indexOf(shownBoard);
  select.onchange = () => { shownBoard = boards[select.value]; drawPlot(); };
  document.querySelectorAll('.plot-this').forEach((button) =>
    button.setAttribute('aria-pressed', `${data.boards[button.dataset.board] === shownBoard}`));
  const [xAxis, yAxis, scored] = axesOf(shownBoard);
  $('plot-title').textContent = scored ? 'Quality against cost' : 'Memory against latency';
  $('plot-x').hidden = !scored;
  document.querySelectorAll('[name=x]').forEach((input) => {
    input.checked = input.value === state.x;
    input.onchange = () => change({ x: input.value });
  });
  $('plot-svg').replaceChildren(picture(shownBoard, xAxis, yAxis, scored));
  light(null);
}

// More points than that would hide each other under their names and bars.
const MOST_NAMED = 40, MOST_LOST = 8;

function picture(board, xAxis, yAxis, scored) {
  const W = Math.max(280, Math.round($('plot-svg').clientWidth) || 420), H = W < 360 ? 290 : 340;
  const L = 54, R = 14, T = 12, B = 44;
  const shown = drawable(board);
  const lost = board.rows.filter((row) => failed(row) && !shown.includes(row));
  const x = scale(xAxis, shown.map(xAxis.of), L, W - R);
  const y = scale(yAxis, shown.map(yAxis.of), H - B, T + 4);
  const least = scored && board.least;
  const up = scored && !least ? 1 : -1;
  const root = svg('svg', { viewBox: `0 0 ${W} ${H}`, role: 'group', 'aria-label': `${yAxis.name} against ${xAxis.name} on ${board.title}` });
  for (const value of x.ticks) root.append(line(x(value), T, x(value), H - B, 'grid'), text(x(value), H - B + 15, `×${+value.toPrecision(3)}`, 'middle', 'tick'));
  for (const value of y.ticks) root.append(line(L, y(value), W - R, y(value), 'grid'), text(L - 6, y(value) + 4, yAxis.log ? `×${+value.toPrecision(3)}` : value, 'end', 'tick'));
  root.append(line(x.clamp(1), T, x.clamp(1), H - B, 'one'),
    text((L + W - R) / 2, H - 8, `${xAxis.name} (left is better)`, 'middle', 'axis'),
    svg('text', { class: 'axis', 'text-anchor': 'middle', transform: `translate(11 ${(T + H - B) / 2}) rotate(-90)` },
      `${yAxis.name} (${up > 0 ? 'up' : 'down'} is better)`));

  const at = new Map(shown.map((row) => [row, [x(xAxis.of(row)[0]), y(yAxis.of(row)[0])]]));
  const front = new Set();
  let best = Infinity, path = '';
  for (const row of [...shown].sort((a, b) => at.get(a)[0] - at.get(b)[0] || up * (at.get(a)[1] - at.get(b)[1]))) {
    const [px, py] = at.get(row);
    if (up * py >= best) continue;
    path += path ? `H${px}V${py}` : `M${px} ${py}`;
    best = up * py;
    front.add(row);
  }
  root.append(svg('path', { class: 'front', d: path }));
  const roomy = shown.length <= MOST_NAMED;
  for (const [row, [px, py]] of roomy ? at : []) {
    const [, xl, xh] = xAxis.of(row), [, yl, yh] = yAxis.of(row);
    if (xl != null) root.append(line(x.clamp(Math.max(xl, 1e-9)), py, xh == null ? W - R : x.clamp(xh), py, 'bar'));
    if (yl != null && yh != null) root.append(line(px, y.clamp(yl), px, y.clamp(yh), 'bar'));
  }

  const taken = [...at.values()].map(([px, py]) => [px - 7, py - 7, px + 7, py + 7]);
  const bit = xAxis === AXES.memory ? 2 : 1;
  for (const row of shown) {
    const [px, py] = at.get(row);
    const beaten = scored && row.beaten & bit;
    const words = `${row.label}: ${summary(row)}${beaten ? '; surely beaten' : ''}`;
    root.append(svg('g', { class: `point${beaten ? ' beaten' : ''}`, 'data-row': row.i, tabindex: 0, role: 'button', 'aria-label': `${words}. Opens its origin.`,
      click: () => openOrigin(row, scored ? 'quality' : 'latency'), keydown: (event) => {
        if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); openOrigin(row, scored ? 'quality' : 'latency'); }
      }, mouseenter: () => light(row), mouseleave: () => light(null), focus: () => light(row), blur: () => light(null) },
      svg('circle', { cx: px, cy: py, r: 12, class: 'hit' }),
      svg('g', { transform: `translate(${px} ${py})` }, shape(row)), roomy || front.has(row) ? label(row, px, py, taken, W - R, L - 22) : null));
  }
  if (lost.length > MOST_LOST) root.append(text(W - R - 4, H - B - 8 - 15 * MOST_LOST, `and ${lost.length - MOST_LOST} more`, 'end'));
  lost.slice(0, MOST_LOST).forEach((row, i) => root.append(svg('g', { class: 'point lost', 'data-row': row.i, mouseenter: () => light(row), mouseleave: () => light(null), click: () => openOrigin(row, 'method') },
    text(W - R - 4, H - B - 8 - 15 * i, `${row.label} ✕ ${ending(row)}`, 'end'))));
  return root;
}
const line = (x1, y1, x2, y2, look) => svg('line', { x1, y1, x2, y2, class: look });
const text = (x, y, words, anchor, look) => svg('text', { x, y, 'text-anchor': anchor, class: look }, `${words}`);

function label(row, x, y, taken, right, left) {
  const words = row.label.length > 22 ? `${row.label.slice(0, 21)}…` : row.label;
  const width = words.length * 6.8 + 2;
  for (const [dx, dy, anchor] of [[10, 4, 'start'], [-10, 4, 'end'], [0, -11, 'middle'], [0, 20, 'middle'], [9, -9, 'start'], [-9, -9, 'end'], [9, 17, 'start'], [-9, 17, 'end']]) {
    const from = x + dx - (anchor === 'end' ? width : anchor === 'middle' ? width / 2 : 0);
    const box = [from, y + dy - 11, from + width, y + dy + 3];
    if (box[0] < left || box[2] > right + 12 || box[1] < 0 || taken.some((t) => t[0] < box[2] && t[2] > box[0] && t[1] < box[3] && t[3] > box[1])) continue;
    taken.push(box);
    return text(x + dx, y + dy, words, anchor);
  }
  return null;
}

const summary = (row) => [row.value == null ? '' : `${points(row.value)}${reach(row) && ` ${reach(row)}`}`,
  row.ratio == null ? '' : `latency ${times(row.ratio)}`, row.memory == null ? '' : `memory ${times(row.memory)}`].filter(Boolean).join(', ');

function light(row) {
  document.querySelectorAll('.lit').forEach((element) => element.classList.remove('lit'));
  if (row) document.querySelectorAll(`[data-row="${row.i}"]`).forEach((element) => element.classList.add('lit'));
  $('plot-note').textContent = row && row.board === shownBoard && row.ratio != null
    ? `${row.label}: ${summary(row)}`
    : `Bars are 95 % intervals, the line is the front.${shownBoard && axesOf(shownBoard)[2] ? ' Pale: another is surely no worse in either and surely better in one.' : ''}`;
}

// ----------------------------------------------------------------------------------------- origin

function facts(title, name, asked, entries, ...rest) {
  const told = entries.filter(([, value]) => value != null && value !== '' && value !== '–');
  if (!told.length && !rest.some(Boolean)) return null;
  return h('section', { class: name === asked && 'asked' }, h('h3', {}, title),
    h('dl', {}, told.map(([term, value]) => [h('dt', {}, term), h('dd', {}, value)])), ...rest);
}

function histogram(name, bins, median) {
  if (!bins) return null;
  const [lo, hi, n, heights] = bins;
  const bars = [...heights].map((digit, i) => {
    const height = (parseInt(digit, 36) / 35) * 44;
    return svg('rect', { x: i * 25 + 1, y: 46 - height, width: 23, height });
  });
  const where = hi > lo ? ((median - lo) / (hi - lo)) * 300 : 150;
  const words = `${name}: ${n} timings from ${some(lo)} to ${some(hi)} ms, median ${some(median)} ms`;
  return h('figure', {}, h('figcaption', {}, `${name}, ${n} timings`),
    svg('svg', { viewBox: '0 0 300 48', class: 'histogram', role: 'img', 'aria-label': words, preserveAspectRatio: 'none' },
      bars, line(0, 47, 300, 47, 'floor'), line(where, 0, where, 47, 'median')),
    h('p', { class: 'ends' }, h('span', {}, `${some(lo)} ms`), h('span', {}, `median ${some(median)}`), h('span', {}, `${some(hi)} ms`)));
}

function openOrigin(row, asked) {
  const { board, more } = row;
  const host = row.host == null ? {} : data.host[row.host];
  const told = { ...board, method: row.method };
  const command = row.command == null ? 'not recorded' : data.command[row.command].replace(/\{(\w+)\}/g, (_, name) => told[name]);
  const difference = row.base == null || row.value == null ? null : row.value - row.base;
  const few = row.ratioHi == null && row.ratio != null ? ', too few for an interval' : '';
  const sections = [
    facts('Quality', 'quality', asked, [
      ['Score', row.value == null ? null : `${points(row.value)}${row.reach == null ? '' : within(row.lo, row.hi, points)} ${row.metric || ''}, n = ${some(row.n)}${row.lost ? `, ${row.lost} failed` : ''}${row.lo != null && row.reach == null ? '; every sample scores the same, so there is no interval' : ''}`],
      ['Interval', row.reach == null ? null : more.ci_method],
      ['Vanilla', row.base == null ? null : `${points(row.base)}${within(row.baseLo, row.baseHi, points)} on the same samples`],
      ['Difference', difference == null ? null : `${signed(difference)}${within(row.diffLo, row.diffHi, signed)} points`],
      ['Rank', row.first == null ? null : `${rank(row)} of ${board.rows.filter((other) => other.first != null).length}; pairs told apart ${board.how}`],
      ['Input cut', row.cut ? `${(row.cut * 100).toFixed(1)} % of tokens` : null],
    ]),
    facts('Latency', 'latency', asked, [
      ['Ratio', row.isBase ? 'vanilla is what the others are measured against' : row.ratio == null ? more.ratio_reason : `${times(row.ratio)}${within(row.ratioLo, row.ratioHi, times)} ${row.verdict || ''}`],
      ['Medians', row.ms == null ? null : `${some(row.ms)} ms${row.baseMs == null ? '' : `, vanilla ${some(row.baseMs)} ms`}`],
      ['Pairs', row.pairs == null ? null : `${row.pairs}${few}${row.p == null ? '' : `; p = ${row.p}`}`],
      ['Machine’s noise', row.noise == null ? null : `±${row.noise} % between equal arms`],
      ['† Busy machine', row.noisy ? more.noise_reason || 'yes' : null],
    ], histogram(row.label, row.times, row.ms), histogram('vanilla, in the same process', row.baseTimes, row.baseMs)),
    facts('Memory', 'memory', asked, [
      ['Ratio', row.isBase ? null : row.memory == null ? more.mem_reason : `${times(row.memory)} (read once; repeats within 1 %)`],
      ['Peak of one cold forward', row.mib == null ? null : `${some(row.mib)} MiB${row.baseMib == null ? '' : `, vanilla ${some(row.baseMib)} MiB`}`],
      ['Read from', more.mem_method],
      ['Longest input that fits', row.longest == null ? null : `${grouped(row.longest)} tokens`],
    ]),
    facts('Output error', 'error', asked, [
      ['Relative L2', row.error == null ? more.fid_reason : small(row.error)],
      ['First choice equal', row.top1 == null ? null : `${(row.top1 * 100).toFixed(1)} %`],
      ['Mean KL divergence', small(row.kl)],
    ]),
  ].filter(Boolean);
  const ended = failed(row) ? facts('How it ended', 'method', asked, [
    ['Status', `${row.status}${row.stage ? ` in stage ${row.stage}` : ''}`], ['Vanilla', more.baseline_reason],
  ], more.status_detail ? h('pre', { tabindex: 0, 'aria-label': 'Last lines' }, more.status_detail) : null) : null;
  const origin = facts('Where it comes from', 'rank', '', [
    ['Row', h('code', {}, row.id)], ['Stored', row.created ? `${row.created.replace('T', ' ')} UTC` : null],
    ['Command', h('code', {}, command)], ['Commit', row.code ? h('code', {}, row.code) : 'not recorded'],
    ['Host', host.host_id], ['Machine', [host.gpu_name, host.cpu_model, host.cores_phys && `${host.cores_phys} cores`, host.virt !== 'none' && host.virt].filter(Boolean).join(', ')],
    ['Software', [host.torch && `torch ${host.torch}`, host.python && `Python ${host.python}`, host.os_kernel].filter(Boolean).join(', ')],
    ['Method', more.method_params && more.method_params !== '{}' ? h('code', {}, more.method_params) : null],
    ['Model', `${board.model}, ${board.weights} weights ${row.weights}`], ['Rows', `${board.source}${board.split ? `, ${board.split}` : ''} ${board.data || ''}`],
    ['Shape', `${board.device} ${board.dtype}, batch ${some(board.batch)}, threads ${some(board.threads)}, seed ${some(board.seed)}, measure=${board.measure}`],
    ['Launcher', more.launcher],
  ]);
  const first = sections.find((section) => section.classList.contains('asked'));
  $('origin-title').textContent = `${row.label} · ${board.task || ''} · ${board.length == null ? '' : `${grouped(board.length)} tokens`}`;
  $('origin-body').replaceChildren(...[ended, first, origin, ...sections.filter((section) => section !== first)].filter(Boolean));
  if (!$('origin').open) $('origin').showModal();
  $('origin').scrollTop = 0;
  state.row = row.id;
  writeAddress();
}
$('origin').addEventListener('close', () => { state.row = ''; writeAddress(); });
$('origin').addEventListener('click', (event) => { if (event.target === $('origin')) $('origin').close(); });

// ------------------------------------------------------------------------------------------ start

function draw() {
  drawTabs();
  drawFilters();
  drawBoards();
  drawPlot();
}
function arrive() {
  readAddress();
  draw();
  const row = state.row && rows.find((candidate) => candidate.id === state.row);
  if (row) openOrigin(row, 'quality');
  else $('origin').close();
}
$('controls').hidden = false;
$('filters').addEventListener('submit', (event) => event.preventDefault());
document.body.classList.add('live');
state = { ...START };
arrive();
addEventListener('hashchange', arrive);
let width = $('plot-svg').clientWidth;
new ResizeObserver(() => {
  if (Math.abs($('plot-svg').clientWidth - width) < 4) return;
  width = $('plot-svg').clientWidth;
  drawPlot();
}).observe($('plot-svg'));
})();
