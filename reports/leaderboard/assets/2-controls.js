// The address holds the state: a view can be sent to someone.

function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  state = { ...START };
  for (const name in START) if (asked.has(name)) state[name] = asked.get(name);
  if (!benchmarks.includes(state.tab)) state.tab = START.tab;
  if (!Object.hasOwn(COLUMNS, state.sort)) state.sort = START.sort;
  for (const name of ['x', 'y']) if (!Object.hasOwn(COSTS, state[name]) && !(name === 'y' && state.y === 'quality')) state[name] = START[name];
  if (!['ascending', 'descending'].includes(state.dir)) state.dir = natural(state.sort);
  for (const name in FILTERS) if (state[name] && !valuesOf(name, inTab()).includes(state[name])) state[name] = '';
}
const natural = (column) => (COLUMNS[column].down ? 'descending' : 'ascending');

function writeAddress() {
  const told = Object.entries(state).filter(([name, value]) => value !== START[name] && !(name === 'dir' && value === natural(state.sort)));
  history.replaceState(null, '', `#${new URLSearchParams(told)}`);
}

function change(changes) {
  Object.assign(state, changes);
  writeAddress();
  draw();
}

const inTab = () => data.boards.filter((board) => state.tab === ALL || board.benchmark === state.tab);
const passes = (board, except) => Object.keys(FILTERS).every((name) => name === except || !state[name] || String(board[name]) === state[name]);
function valuesOf(name, boards) {
  const values = [...new Set(boards.map((board) => board[name]).filter((value) => value != null))];
  return values.sort((a, b) => (typeof a === 'number' ? a - b : a < b ? -1 : 1)).map(String);
}

// Names that the reader unticked: methods (`not`) and columns (`hide`), as a list in the address.
function unticked(name) {
  try {
    const list = JSON.parse(state[name] || '[]');
    return new Set(Array.isArray(list) ? list : []);
  } catch {
    return new Set();
  }
}

// The boards to show, each with its rows. Vanilla stays wherever another row does.
let shown = new Map();
function choose() {
  const words = state.q.toLowerCase().split(/\s+/).filter(Boolean), hidden = unticked('not');
  shown = new Map();
  for (const board of inTab()) {
    if (!passes(board)) continue;
    const about = `${board.title} ${board.benchmark} ${processorOf(board.host)}`.toLowerCase();
    const fits = (row) => !hidden.has(row.method) && words.every((word) => about.includes(word) || row.label.toLowerCase().includes(word));
    const found = board.rows.filter(fits);
    if (found.length) shown.set(board, board.rows.filter((row) => row.isBase || fits(row)));
  }
}
const visible = () => [...shown.keys()];

function drawTabs() {
  const counts = new Map(benchmarks.map((name) => [name, name === ALL ? rows.length : 0]));
  for (const board of data.boards) counts.set(board.benchmark, counts.get(board.benchmark) + board.rows.length);
  $('tabs').replaceChildren(...benchmarks.map((name, i) => {
    const on = name === state.tab;
    return h('button', { type: 'button', role: 'tab', id: `tab-${i}`, 'aria-selected': `${on}`, 'aria-controls': 'panel',
      tabindex: on ? 0 : -1, click: () => openTab(i), keydown: tabKey }, name, ' ', h('small', {}, grouped(counts.get(name))));
  }));
  fill($('panel'), { role: 'tabpanel', 'aria-labelledby': `tab-${benchmarks.indexOf(state.tab)}` }, []);
}
// Filters that no board of the new tab fits are taken away.
function switchTab(name, more = {}) {
  shownBoard = null;
  Object.assign(state, more, { tab: name });
  for (const filter in FILTERS) if (state[filter] && !inTab().some((board) => passes(board))) state[filter] = '';
  change({});
}
function openTab(i) {
  switchTab(benchmarks[i], { task: '' });
  $(`tab-${i}`).focus();
}
function tabKey(event) {
  const at = benchmarks.indexOf(state.tab), n = benchmarks.length;
  const to = { ArrowRight: (at + 1) % n, ArrowLeft: (at + n - 1) % n, Home: 0, End: n - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  openTab(to);
}

function selectOf(id, label, options, value, changed) {
  const select = h('select', { id, change: (event) => changed(event.target.value) }, options.map(([own, words]) => h('option', { value: own }, words)));
  select.value = value;
  return h('label', {}, label, ' ', select);
}
const tokens = (length) => `${grouped(+length)} tokens`;

// A filter offers what exists with the other filters; one that has no choice isn't there.
function drawFilters() {
  const focused = document.activeElement && document.activeElement.id;
  const boards = inTab();
  const selects = Object.entries(FILTERS).flatMap(([name, label]) => {
    if (!state[name] && valuesOf(name, boards).length < 2) return [];
    const offered = new Set([...valuesOf(name, boards.filter((board) => passes(board, name))), ...(state[name] ? [state[name]] : [])]);
    const options = [['', 'all'], ...[...offered].map((value) => [value, name === 'length' ? tokens(value) : name === 'host' ? machineName(value) : value])];
    return [selectOf(`filter-${name}`, label, options, state[name], (value) => change({ [name]: value }))];
  });
  $('selects').replaceChildren(...selects);
  $('reset').disabled = ['q', 'not', ...Object.keys(FILTERS)].every((name) => !state[name]);
  if ($('search').value !== state.q) $('search').value = state.q;
  const methods = [...new Set(rows.map((row) => row.method))].sort();
  drawTicks('methods', 'not', 'Methods', methods.map((name) => [name, name]));
  drawTicks('columns', 'hide', 'Columns', existing().filter((name) => name !== 'method').map((name) => [name, COLUMNS[name].head]));
  if (focused && focused.startsWith('filter-') && $(focused)) $(focused).focus();
}

function drawTicks(id, name, title, options) {
  const off = unticked(name), on = options.filter(([value]) => !off.has(value)).length;
  $(id).firstElementChild.textContent = `${title}: ${on === options.length ? 'all' : `${on} of ${options.length}`}`;
  const box = $(id).lastElementChild;
  const set = (values) => change({ [name]: values.size ? JSON.stringify([...values]) : '' });
  const had = box.contains(document.activeElement) ? [...box.querySelectorAll('input, button')].indexOf(document.activeElement) : -1;
  box.replaceChildren(h('legend', {}, title),
    ...options.map(([value, words]) => h('label', {}, h('input', { type: 'checkbox', checked: !off.has(value), change: () => {
      const now = unticked(name);
      if (!now.delete(value)) now.add(value);
      set(now);
    } }), ' ', words)),
    h('button', { type: 'button', click: () => set(new Set()) }, 'All'),
    h('button', { type: 'button', click: () => set(new Set(options.map(([value]) => value))) }, 'None'));
  if (had >= 0) box.querySelectorAll('input, button')[had].focus();
}

const existing = () => Object.keys(COLUMNS).filter((name) => !COLUMNS[name].where || visible().some((board) => board.rows.some((row) => row[COLUMNS[name].where] != null)));
function columnsOf(boards) {
  const off = unticked('hide');
  return Object.entries(COLUMNS).filter(([name, { where }]) => name === 'method' ||
    (!off.has(name) && (!where || boards.some((board) => board.rows.some((row) => row[where] != null)))));
}
