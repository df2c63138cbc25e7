// The reader's choice: family, model, length, the cost that matters, machine.

const FAMILIES = ['decoder', 'encoder–decoder', 'encoder', 'other'];
// The costs of the first question; the others are offered where they were measured.
const MAIN_COSTS = { decoder: ['tpot', 'held'], other: ['ratio', 'memory'] };
const CAPS = { '': 'any', 1: 'vanilla’s', 0.75: '¾ of vanilla’s', 0.5: 'half of vanilla’s', 0.25: 'a quarter', 0.125: 'an eighth' };

function most(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  return [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || (b > a ? 1 : -1))[0];
}

const isPartial = (board) => board.lacks != null;
const toy = (board) => ['embedded', 'random'].includes(board.weights);
// Boards with speed and quality come first, and among them those of public weights.
const evidence = (board) => 2 * !isPartial(board) + !toy(board);
function strongest(boards) {
  const highest = Math.max(...boards.map(evidence));
  return boards.filter((board) => evidence(board) === highest);
}
const usual = (boards, name) => most(strongest(boards).map((board) => String(board[name])));
const uniqueOf = (boards, name) => [...new Set(boards.map((board) => board[name]))];

// `found`: the boards of the chosen model, length and machine; `there`: those of all machines.
function choice() {
  const asked = (value, options, other) => (options.includes(value) ? value : other);
  const families = FAMILIES.filter((name) => data.boards.some((board) => board.family === name));
  const firstFamily = FAMILIES.find((name) => strongest(data.boards).some((board) => board.family === name));
  const family = asked(state.family, families, firstFamily);
  const ofFamily = data.boards.filter((board) => board.family === family);
  const models = valuesOf('model', ofFamily);
  const model = asked(state.of, models, usual(ofFamily, 'model'));
  const ofModel = ofFamily.filter((board) => String(board.model) === model);
  const lengths = valuesOf('length', ofModel);
  const at = state.at === 'all' ? 'all' : asked(state.at, lengths, usual(ofModel, 'length'));
  const there = at === 'all' ? ofModel : ofModel.filter((board) => String(board.length) === at);
  const measuredOn = uniqueOf(there, 'host');
  const hosts = [...measuredOn, ...uniqueOf(data.boards, 'host').filter((name) => !measuredOn.includes(name))];
  const host = asked(state.on, hosts, usual(there, 'host'));
  const found = there.filter((board) => board.host === host).sort((a, b) => evidence(b) - evidence(a));
  const main = MAIN_COSTS[family] || MAIN_COSTS.other;
  const measured = Object.keys(COSTS).filter((cost) => found.some((board) => board.costs.includes(cost)));
  const costs = [...main, ...measured.filter((cost) => !main.includes(cost))];
  const aim = asked(state.aim, costs, main.find((cost) => measured.includes(cost)) || measured[0] || main[0]);
  return { families, family, models, model, lengths, at, hosts, host, measuredOn, there, found, boards: found.slice(0, MOST_BOARDS), costs, measured, aim };
}

const costName = (cost) => COSTS[cost].name.toLowerCase().replace('kv', 'KV');
const processorOf = (name) => data.host[data.boards.find((board) => board.host === name).machine].processor;
const machineName = (name) => `${processorOf(name)} (${name})`;

function drawChoice(chosen) {
  const { families, family, models, model, lengths, at, hosts, host, measuredOn, found, boards, costs, measured, aim } = chosen;
  const focused = document.activeElement && document.activeElement.id;
  const toys = new Set(data.boards.filter(toy).map((board) => String(board.model)));
  const unmeasured = (known, words) => (known ? words : `${words}: not measured`);
  $('choice-form').replaceChildren(
    selectOf('choice-family', 'Family', families.map((name) => [name, name]), family, (value) => change({ family: value, of: '', at: '', on: '', aim: '' })),
    selectOf('choice-of', 'Model', models.map((name) => [name, toys.has(name) ? `${name} (toy weights)` : name]), model, (value) => change({ family, of: value, at: '', on: '' })),
    selectOf('choice-at', 'Length', [...lengths.map((value) => [value, tokens(value)]), ...(lengths.length > 1 ? [['all', 'all lengths']] : [])], at, (value) => change({ family, of: model, at: value })),
    selectOf('choice-aim', 'What matters', costs.map((cost) => [cost, unmeasured(!found.length || measured.includes(cost), costName(cost))]), aim, (value) => change({ aim: value })),
    selectOf('choice-on', 'Machine', hosts.map((name) => [name, unmeasured(measuredOn.includes(name), machineName(name))]), host, (value) => change({ family, of: model, at, on: value })),
    selectOf('choice-cap', 'Memory at most', Object.entries(CAPS).sort(([a], [b]) => (+b || 9) - (+a || 9)), state.cap in CAPS ? state.cap : '', (value) => change({ cap: value })));
  if (focused && focused.startsWith('choice-') && $(focused)) $(focused).focus();
  $('choice-note').textContent = found.length > boards.length ? `${boards.length} of ${found.length} tasks and settings are shown; all are under Boards.` : '';
}

// The command that would measure what the choice lacks: that of a row of the model, with other words.
function commandFor({ there, at }, measure) {
  const board = there.find((one) => one.rows.some((row) => row.command != null)) || there[0];
  const known = board.rows.find((row) => row.command != null), methods = new Set(board.rows.filter((row) => !row.oracle).map((row) => row.method));
  const words = { method: [...methods].slice(0, 4).join(','), length: at === 'all' ? board.length : at, measure };
  const kept = known ? commandOf(known).split(/\s+/).slice(2).filter((word) => word !== '-m' && !(word.split('=')[0] in words)) : [`task=${board.task}`, `model=${board.model}`];
  return ['bench run -m', ...Object.entries(words).map(([name, value]) => `${name}=${value}`), ...kept.filter((word) => !word.startsWith('method.'))].join(' ');
}
