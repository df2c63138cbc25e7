function draw() {
  choose();
  limit = MOST_ROWS;
  drawMatrix();
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

function listen() {
  const dialog = $('origin'), frame = $('plot-svg');
  dialog.addEventListener('close', () => {
    state.row = '';
    writeAddress();
  });
  dialog.addEventListener('click', (event) => {
    if (event.target === dialog) dialog.close();
  });
  for (const form of ['filters', 'choice-form']) $(form).addEventListener('submit', (event) => event.preventDefault());
  let typed;
  $('search').addEventListener('input', () => {
    clearTimeout(typed);
    typed = setTimeout(() => change({ q: $('search').value, tab: ALL }), 150);
  });
  $('reset').addEventListener('click', () => {
    change(Object.fromEntries(['q', 'not', ...Object.keys(FILTERS)].map((name) => [name, ''])));
    $('search').focus();
  });
  $('csv').addEventListener('click', downloadCsv);
  $('to-plot').addEventListener('click', () => $('plot').scrollIntoView());
  addEventListener('hashchange', arrive);
  let width = frame.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(frame.clientWidth - width) < 4) return;
    width = frame.clientWidth;
    drawPlot();
  }).observe(frame);
}

function start(loaded) {
  take(loaded);
  $('choice').hidden = $('controls').hidden = false;
  document.body.classList.add('live');
  arrive();
  listen();
}
