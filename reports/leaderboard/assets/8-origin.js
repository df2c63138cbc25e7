// Where the numbers of a row come from.

function facts(title, name, asked, entries, ...rest) {
  const told = entries.filter(([, value]) => value != null && value !== '' && value !== '–');
  if (!told.length && !rest.some(Boolean)) return null;
  return h('section', { class: name === asked && 'asked' }, h('h3', {}, title),
    h('dl', {}, told.map(([term, value]) => [h('dt', {}, term), h('dd', {}, value)])), ...rest);
}

function histogram(name, bins, median) {
  if (!bins) return null;
  const [lo, hi, n, heights] = bins;
  const width = 300 / heights.length, most = Math.max(...heights);
  const bars = [...heights].map((digit, i) => {
    const height = (digit / most) * 44;
    return svg('rect', { x: i * width + 1, y: 46 - height, width: width - 2, height });
  });
  const where = hi > lo ? ((median - lo) / (hi - lo)) * 300 : 150;
  const words = `${name}: ${n} timings from ${some(lo)} to ${some(hi)} ms, median ${some(median)} ms`;
  return h('figure', {}, h('figcaption', {}, `${name}, ${n} timings`),
    svg('svg', { viewBox: '0 0 300 48', class: 'histogram', role: 'img', 'aria-label': words, preserveAspectRatio: 'none' },
      bars, line(0, 47, 300, 47, 'floor'), line(where, 0, where, 47, 'median')),
    h('p', { class: 'ends' }, h('span', {}, `${some(lo)} ms`), h('span', {}, `median ${some(median)}`), h('span', {}, `${some(hi)} ms`)));
}

const than = (row, cost) => (row.isBase || row[cost] == null ? '' : `${times(row[cost], row[COSTS[cost].pairs])}${within(row[COSTS[cost].lo], row[COSTS[cost].hi], times)} ${row[COSTS[cost].verdict] || ''}`);
const decoded = (row, cost) => row[`${cost}Ms`] == null ? null : `${than(row, cost)} ${some(row[`${cost}Ms`])} ms${row[`${cost}BaseMs`] == null ? '' : `, vanilla ${some(row[`${cost}BaseMs`])} ms`}`.trim();
const kept = (row, cost) => row[`${cost}Mib`] == null ? null : `${than(row, cost)} ${some(row[`${cost}Mib`])} MiB${row[`${cost}BaseMib`] == null ? '' : `, vanilla ${some(row[`${cost}BaseMib`])} MiB`}`.trim();
function commandOf(row) {
  const told = { ...row.board, method: row.method };
  return data.command[row.command].replace(/\{(\w+)\}/g, (_, name) => told[name]);
}
const paperOf = (method) => data.papers[method]?.paper;

function openOrigin(row, asked) {
  const { board, more } = row;
  const score = (value) => points(value, board), apart = (value) => signed(value, board), unit = board.least ? '' : ' points';
  const host = row.host == null ? {} : data.host[row.host];
  const command = row.beside ? 'that of the other methods' : row.command == null ? 'not recorded' : commandOf(row);
  const difference = row.base == null || row.value == null ? null : row.value - row.base;
  const few = row.ratioHi == null && row.ratio != null ? ', too few for an interval' : '';
  const sections = [
    facts('Quality', 'quality', asked, [
      ['Score', row.value == null ? null : `${score(row.value)}${row.reach == null ? '' : within(row.lo, row.hi, score)} ${row.metric || ''}${board.least ? ', less is better' : ''}, n = ${some(row.n)}${row.lost ? `, ${row.lost} failed` : ''}${row.lo != null && row.reach == null ? '; every sample scores the same, so there is no interval' : ''}`],
      ['Interval', row.reach == null ? null : more.ci_method],
      ['Vanilla', row.base == null ? null : `${score(row.base)}${within(row.baseLo, row.baseHi, score)} on the same samples; ${more.compared}`],
      ['Best constant answer', row.chance == null ? null : `${score(row.chance)}${row.atChance ? ': ‡ this score is not clearly above it' : ''}`],
      ['Difference', difference == null ? null : `${apart(difference)}${within(row.diffLo, row.diffHi, apart)}${unit}; ${more.compared}`],
      ['Vanilla’s quality', row.kept && `${row.kept}${row.detectable == null ? '' : `; these samples show differences from ${row.detectable}${unit} on`}`],
      ['§ Training', row.ownWeights ? more.training : null],
      ['§ Vanilla’s training', row.ownWeights ? more.base_training : null],
      ['Rank', row.oracle ? 'none: an oracle, which shows a ceiling' : row.first == null ? null : `${rank(row)} of ${board.rows.filter((other) => other.first != null).length}; pairs told apart ${board.how}`],
      ['Input cut', row.cut ? `${(row.cut * 100).toFixed(1)} % of tokens` : null],
    ]),
    facts('Latency', 'latency', asked, [
      ['Ratio', row.isBase ? 'vanilla is what the others are measured against' : row.ratio == null ? more.lat_reason : `${times(row.ratio, row.pairs)}${within(row.ratioLo, row.ratioHi, times)} ${row.verdict || ''}`],
      ['Same engine', row.engine != null ? `${times(row.engine)}${within(row.engineLo, row.engineHi, times)} ${row.engineVerdict} against exact attention on ${more.engine_kernel}`
        : more.engine_kernel && row.ratio != null ? 'the same: vanilla is exact attention on that engine' : more.engine_reason],
      ['Conclusion', row.engineOnly && `faster ${row.engineOnly}`],
      ['Kernel', more.kernel],
      ['Medians', row.ms == null ? null : `${some(row.ms)} ms${row.baseMs == null ? '' : `, vanilla ${some(row.baseMs)} ms`}`],
      ['Pairs', row.pairs == null ? null : `${row.pairs}${few}${row.p == null ? '' : `; p = ${row.p}`}`],
      ['Between processes', row.ratio == null ? null : row.spread == null ? `not seen: ${more.lat_process_reason || 'an older row, of one process'}` : `±${row.spread} % between the ratios of ${row.processes} processes`],
      ['Interval covers', row.ratio == null ? null : more.lat_ratio_ci_method],
      ['Machine’s noise', row.noise == null ? null : `±${row.noise} % between equal arms`],
      ['† Busy machine', row.noisy ? more.noise_reason || 'yes' : null],
    ], histogram(row.label, row.times, row.ms), histogram(row.processes > 1 ? 'vanilla, in the same processes' : 'vanilla, in the same process', row.baseTimes, row.baseMs)),
    facts('Memory', 'memory', asked, [
      ['Ratio', row.isBase ? null : row.memory == null ? more.mem_reason : `${times(row.memory)} (read once; repeats within 1 %)`],
      ['Peak of one cold forward', row.mib == null ? null : `${some(row.mib)} MiB${row.baseMib == null ? '' : `, vanilla ${some(row.baseMib)} MiB`}`],
      ['Read from', more.mem_method],
      ['Longest input that fits', row.longest],
    ]),
    facts('Decoding', 'tpot', ['tpot', 'answer', 'held', 'read'].includes(asked) ? 'tpot' : '', [
      ...['tpot', 'answer'].map((cost) => [COSTS[cost].name, decoded(row, cost)]),
      ...['held', 'read'].map((cost) => [`${COSTS[cost].name}${cost === 'read' ? ' for each token' : ''}`, kept(row, cost)]),
      ['KV held of all tokens in 16 bits', row.held16 == null ? null : times(row.held16)],
      ['No ratio', row.tpot == null || row.tpotVerdict === 'undecided' ? more.tpot_reason : null], ['No bytes', more.kv_reason],
      ['New tokens', row.tokens], ['First choice equal', row.decodeTop1 == null ? null : `${(row.decodeTop1 * 100).toFixed(1)} % of them`],
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
    ['Row', row.beside ? 'none of its own: measured with the other methods' : h('code', {}, row.id)], ['Stored', row.created ? `${row.created.replace('T', ' ')} UTC` : null],
    ['Command', h('code', {}, command)], ['Commit', row.code ? h('code', {}, row.code) : 'not recorded'],
    ['Host', host.host_id && `${host.host_id}${host.older ? ' (older id: without the instruction sets)' : ''}`], ['Instruction sets', host.instruction_sets], ['Machine', host.machine], ['Python', host.python],
    ['Paper', paperOf(row.method) && h('a', { href: `https://arxiv.org/abs/${paperOf(row.method)}`, rel: 'noopener noreferrer' }, `arXiv ${paperOf(row.method)}`)],
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
