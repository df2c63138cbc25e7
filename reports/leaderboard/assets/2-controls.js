// What is chosen stands in the address: a view can be sent to someone.


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
