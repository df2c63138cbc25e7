// The chosen board: quality against a cost; without quality, memory against time.

let shownBoard = null;

// By matplotlib's names, which the figures use too.
const SHAPES = {
  o: 'M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z', s: 'M-4.6-4.6h9.2v9.2h-9.2z', D: 'M0-6.2L6.2 0L0 6.2L-6.2 0z', d: 'M0-6.2L3.8 0L0 6.2L-3.8 0z',
  '^': 'M0-6L5.8 4.6H-5.8z', v: 'M0 6L5.8-4.6H-5.8z', '<': 'M-6 0L4.6-5.8V5.8z', '>': 'M6 0L-4.6-5.8V5.8z', p: 'M0-6L5.7-1.9L3.5 4.9H-3.5L-5.7-1.9z',
  h: 'M0-5.8L5-2.9V2.9L0 5.8L-5 2.9V-2.9z', 8: 'M-2.3-5.6h4.6L5.6-2.3v4.6L2.3 5.6h-4.6L-5.6 2.3v-4.6z',
  '*': 'M0-6.4L1.7-2H6.2L2.6 .9L4 5.6L0 2.8L-4 5.6L-2.6 .9L-6.2-2H-1.7z', P: 'M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z',
  X: 'M-6-3.6L-3.6-6L0-2.4L3.6-6L6-3.6L2.4 0L6 3.6L3.6 6L0 2.4L-3.6 6L-6 3.6L-2.4 0z',
};
function shape(row) {
  const [colour, name] = data.looks[row.method] || ['', 'o'];
  // Black follows the colour scheme.
  const fill = row.oracle ? 'none' : colour === '#000000' ? 'currentColor' : colour;
  return svg('path', { d: SHAPES[row.oracle ? 'o' : name], fill, class: `shape${row.oracle ? ' oracle' : ''}`, 'fill-rule': 'evenodd' });
}
const marker = (row) => svg('svg', { viewBox: '-8 -8 16 16', class: 'marker', 'aria-hidden': 'true' }, shape(row));

const QUALITY = { of: (r) => [r.value, r.lo, r.hi], name: 'Quality' };
const axis = (cost) => ({ log: true, cost, of: (r) => [r[cost], r[COSTS[cost].lo], r[COSTS[cost].hi]], name: `${COSTS[cost].name} ÷ vanilla` });
const costOn = (board) => (board.costs.includes(state.x) ? state.x : board.costs[0] || 'ratio');
function axesOf(board) {
  const scored = board.kind !== 'random' && board.rows.some((row) => row.value != null);
  return scored ? [axis(costOn(board)), QUALITY, scored] : [axis(timeOf(board, 'ratio')), axis(memoryOf(board, 'memory')), scored];
}
const drawable = (board) => {
  const [x, y] = axesOf(board);
  return (shown.get(board) || []).filter((row) => x.of(row)[0] > 0 && y.of(row)[0] != null);
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
  const least = axis.log ? 0.2 : Math.min(5, b);
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
  $('plot-title').textContent = scored ? 'Quality against cost' : `${COSTS[yAxis.cost].name} against ${costName(xAxis.cost)}`;
  $('plot-x').hidden = !scored;
  drawRadios('plot-x', 'x', 'Cost', shownBoard.costs, costOn(shownBoard));
  drawCurves();
  $('plot-svg').replaceChildren(picture(shownBoard, xAxis, yAxis, scored));
  light(null);
}
function drawRadios(id, name, legend, values, chosen) {
  const focused = document.activeElement && document.activeElement.name === name;
  $(id).replaceChildren(h('legend', {}, legend), ...values.map((value) => h('label', {},
    h('input', { type: 'radio', name, value, checked: value === chosen, change: () => change({ [name]: value }) }), ' ', value === 'quality' ? 'quality' : COSTS[value].name.toLowerCase().replace('kv', 'KV'))));
  if (focused) $(id).querySelector(':checked').focus();
}

// More points than that would hide each other under their names and bars.
const MOST_NAMED = 40, MOST_LOST = 8, MOST_DRAWN = 1000;

function picture(board, xAxis, yAxis, scored) {
  const W = Math.max(280, Math.round($('plot-svg').clientWidth) || 420), H = W < 360 ? 290 : 340;
  const L = 54, R = 14, T = 12, B = 44;
  const drawn = drawable(board), there = new Set(drawn);
  const lost = (shown.get(board) || []).filter((row) => failed(row) && !there.has(row));
  const x = scale(xAxis, drawn.map(xAxis.of), L, W - R);
  const y = scale(yAxis, drawn.map(yAxis.of), H - B, T + 4);
  const least = scored && board.least;
  const up = scored && !least ? 1 : -1;
  const root = svg('svg', { viewBox: `0 0 ${W} ${H}`, role: 'group', 'aria-label': `${yAxis.name} against ${xAxis.name} on ${board.title}` });
  for (const value of x.ticks) root.append(line(x(value), T, x(value), H - B, 'grid'), text(x(value), H - B + 15, `×${+value.toPrecision(3)}`, 'middle', 'tick'));
  for (const value of y.ticks) root.append(line(L, y(value), W - R, y(value), 'grid'), text(L - 6, y(value) + 4, yAxis.log ? `×${+value.toPrecision(3)}` : value, 'end', 'tick'));
  root.append(line(x.clamp(1), T, x.clamp(1), H - B, 'one'),
    text((L + W - R) / 2, H - 8, `${xAxis.name} (left is better)`, 'middle', 'axis'),
    svg('text', { class: 'axis', 'text-anchor': 'middle', transform: `translate(11 ${(T + H - B) / 2}) rotate(-90)` },
      `${yAxis.name} (${up > 0 ? 'up' : 'down'} is better)`));

  const at = new Map(drawn.map((row) => [row, [x(xAxis.of(row)[0]), y(yAxis.of(row)[0])]]));
  const front = new Set();
  let best = Infinity, path = '';
  for (const row of drawn.filter((one) => !one.oracle).sort((a, b) => at.get(a)[0] - at.get(b)[0] || up * (at.get(a)[1] - at.get(b)[1]))) {
    const [px, py] = at.get(row);
    if (up * py >= best) continue;
    path += path ? `H${px}V${py}` : `M${px} ${py}`;
    best = up * py;
    front.add(row);
  }
  root.append(svg('path', { class: 'front', d: path }));
  for (const row of scored ? drawn.filter((one) => one.oracle) : []) root.append(line(L, at.get(row)[1], W - R, at.get(row)[1], 'ceiling'));
  const roomy = drawn.length <= MOST_NAMED;
  for (const [row, [px, py]] of roomy ? at : []) {
    const [, xl, xh] = xAxis.of(row), [, yl, yh] = yAxis.of(row);
    if (xl != null || xh != null) root.append(...bar(x, xl ?? 0, xh ?? Infinity, (at) => [at, py]));
    if (yl != null || yh != null) root.append(...bar(y, yl ?? -Infinity, yh ?? Infinity, (at) => [px, at]));
  }

  const taken = [...at.values()].map(([px, py]) => [px - 7, py - 7, px + 7, py + 7]);
  const bit = { ratio: 1, memory: 2 }[costOn(board)];
  const step = Math.ceil(drawn.length / MOST_DRAWN);
  for (const row of drawn.filter((one, i) => i % step === 0 || front.has(one))) {
    const [px, py] = at.get(row);
    const beaten = scored && row.beaten & bit;
    const words = `${row.label}: ${summary(row)}${beaten ? '; significantly worse than another' : ''}`;
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
// An interval, with an arrow where it goes on or has no bound.
function bar(scaled, lo, hi, place) {
  const [from, to] = [lo, hi].map(scaled.clamp);
  const back = 4 * Math.sign(to - from);
  const heads = [[lo, from, back], [hi, to, -back]].filter(([end, at]) => scaled(end) !== at);
  return [line(...place(from), ...place(to), 'bar'), ...heads.map(([, at, inner]) => {
    const [[x, y], [bx, by]] = [place(at), place(at + inner)], [wx, wy] = [(by - y) * 0.75, (bx - x) * 0.75];
    return svg('path', { class: 'bar', d: `M${bx - wx} ${by - wy}L${x} ${y}L${bx + wx} ${by + wy}` });
  })];
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

const summary = (row) => [row.value == null ? '' : `${points(row.value, row.board)}${reach(row) && ` ${reach(row)}`}`,
  row.ratio == null ? '' : `latency ${times(row.ratio, row.pairs)}`, ...['tpot', 'answer', 'held'].map((cost) => (row[cost] == null ? '' : `${COSTS[cost].name} ${times(row[cost])}`)), row.memory == null ? '' : `memory ${times(row.memory)}`].filter(Boolean).join(', ');

function light(row) {
  document.querySelectorAll('.lit').forEach((element) => element.classList.remove('lit'));
  if (row) document.querySelectorAll(`[data-row="${row.i}"]`).forEach((element) => element.classList.add('lit'));
  $('plot-note').textContent = row && row.board === shownBoard && drawable(shownBoard).includes(row)
    ? `${row.label}: ${summary(row)}`
    : `Bars are 95 % intervals, with an arrow where one goes on; the line is the front.${drawable(shownBoard).some((one) => one.oracle) ? ' Dashed: oracles, the ceiling of their budgets.' : ''}${shownBoard && axesOf(shownBoard)[2] ? ' Pale: another is significantly better in one and no worse in the other.' : ''}`;
}
