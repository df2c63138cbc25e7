// The chosen board's methods over the lengths at which all else is the same.

const SAME = ['task', 'split', 'source', 'model', 'weights', 'device', 'dtype', 'threads', 'batch', 'seed', 'measure', 'question', 'turns', 'host'];

function drawCurves() {
  const series = data.boards.filter((board) => SAME.every((name) => board[name] === shownBoard[name]) && board.length > 0);
  const lengths = [...new Set(series.map((board) => board.length))].sort((a, b) => a - b);
  const hidden = unticked('not');
  const all = series.flatMap((board) => board.rows).filter((row) => !hidden.has(row.method));
  const offered = ['quality', ...Object.keys(COSTS)].filter((name) => new Set(all.filter((row) => valueOf(row, name) != null && !row.isBase).map((row) => row.board.length)).size > 1);
  $('curves').hidden = lengths.length < 2 || !offered.length;
  if ($('curves').hidden) return;
  const y = offered.includes(state.y) ? state.y : offered.find((name) => name !== 'quality') || 'quality';
  drawRadios('curves-y', 'y', 'Shown', offered, y);
  $('curves-svg').replaceChildren(curves(all.filter((row) => valueOf(row, y) != null), lengths, y));
}
const valueOf = (row, name) => (name === 'quality' ? row.value : row[name] > 0 ? row[name] : null);

function curves(points, lengths, name) {
  const W = Math.max(280, Math.round($('plot-svg').clientWidth) || 420), H = 290, L = 54, R = 110, T = 12, B = 44;
  const onY = name === 'quality' ? QUALITY : axis(name);
  const y = scale(onY, points.map((row) => [valueOf(row, name)]), H - B, T + 4);
  const [from, to] = [Math.log(lengths[0]), Math.log(lengths.at(-1))];
  const x = (length) => L + 8 + ((Math.log(length) - from) / (to - from)) * (W - R - L - 8);
  const root = svg('svg', { viewBox: `0 0 ${W} ${H}`, role: 'group', 'aria-label': `${onY.name} over the length of ${shownBoard.task}` });
  for (const length of lengths) root.append(line(x(length), T, x(length), H - B, 'grid'), text(x(length), H - B + 15, grouped(length), 'middle', 'tick'));
  for (const value of y.ticks) root.append(line(L, y(value), W - R, y(value), 'grid'), text(L - 6, y(value) + 4, onY.log ? `×${+value.toPrecision(3)}` : value, 'end', 'tick'));
  root.append(text((L + W - R) / 2, H - 8, 'tokens', 'middle', 'axis'), svg('text', { class: 'axis', 'text-anchor': 'middle', transform: `translate(11 ${(T + H - B) / 2}) rotate(-90)` }, onY.name));
  const taken = [];
  for (const label of [...new Set(points.map((row) => row.label))]) {
    const its = points.filter((row) => row.label === label).sort((a, b) => a.board.length - b.board.length);
    const at = its.map((row) => [x(row.board.length), y(valueOf(row, name))]);
    root.append(svg('path', { class: its[0].oracle ? 'ceiling' : 'front', d: at.map(([px, py], i) => `${i ? 'L' : 'M'}${px} ${py}`).join('') }));
    its.forEach((row, i) => {
      const words = name === 'quality' ? summary(row) : `${COSTS[name].name} ${times(row[name], pairsOf(row, name))}`;
      root.append(svg('g', { class: 'point', 'data-row': row.i, tabindex: 0, role: 'button', 'aria-label': `${label} at ${tokens(row.board.length)}: ${words}. Opens its origin.`,
        click: () => openOrigin(row, 'latency'), keydown: (event) => {
          if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); openOrigin(row, 'latency'); }
        }, mouseenter: () => light(row), mouseleave: () => light(null), focus: () => light(row), blur: () => light(null) },
      svg('circle', { cx: at[i][0], cy: at[i][1], r: 10, class: 'hit' }), svg('g', { transform: `translate(${at[i][0]} ${at[i][1]})` }, shape(row))));
    });
    const [px, py] = at.at(-1);
    if (!taken.some((other) => Math.abs(other - py) < 12)) root.append(text(px + 10, py + 4, label.length > 14 ? `${label.slice(0, 13)}…` : label, 'start'));
    taken.push(py);
  }
  return root;
}
