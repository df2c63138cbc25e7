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

function listen() {
  const dialog = $('origin'), frame = $('plot-svg');
  dialog.addEventListener('close', () => {
    state.row = '';
    writeAddress();
  });
  dialog.addEventListener('click', (event) => {
    if (event.target === dialog) dialog.close();
  });
  $('filters').addEventListener('submit', (event) => event.preventDefault());
  addEventListener('hashchange', arrive);
  let width = frame.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(frame.clientWidth - width) < 4) return;
    width = frame.clientWidth;
    drawPlot();
  }).observe(frame);
}

load().then((loaded) => {
  take(loaded);
  $('controls').hidden = false;
  document.body.classList.add('live');
  arrive();
  listen();
}, (error) => {
  $('summary').append(` This browser can’t unpack the page’s data (${error.message}): only the tables below are readable.`);
});
