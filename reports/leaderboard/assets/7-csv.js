// The rows that are shown, in the order of the boards, as a file.

const CSV = {
  board: (r) => r.board.title, benchmark: (r) => r.board.benchmark, task: (r) => r.board.task, length: (r) => r.board.length, model: (r) => r.board.model,
  weights_kind: (r) => r.board.weights, data_source: (r) => r.board.source, device: (r) => r.board.device, dtype: (r) => r.board.dtype, threads: (r) => r.board.threads,
  batch: (r) => r.board.batch, seed: (r) => r.board.seed, measure: (r) => r.board.measure, host: (r) => r.board.host, machine: (r) => data.host[r.board.machine].machine,
  method: (r) => r.method, label: (r) => r.label, oracle: (r) => r.oracle, paper_arxiv: (r) => data.papers[r.method]?.paper, status: (r) => r.status, rank_first: (r) => r.first, rank_last: (r) => r.last,
  metric: (r) => r.metric, value: (r) => r.value, ci_lo: (r) => r.lo, ci_hi: (r) => r.hi, at_chance: (r) => r.atChance, vanilla_value: (r) => r.base, n_scored: (r) => r.n,
  lat_ms: (r) => r.ms, lat_ratio: (r) => r.ratio, lat_ratio_ci_lo: (r) => r.ratioLo, lat_ratio_ci_hi: (r) => r.ratioHi, lat_n_pairs: (r) => r.pairs, lat_verdict: (r) => r.verdict,
  peak_mib: (r) => r.mib, mem_ratio: (r) => r.memory, tpot_ms: (r) => r.tpotMs, tpot_ratio: (r) => r.tpot, tpot_verdict: (r) => r.tpotVerdict, answer_ms: (r) => r.answerMs,
  answer_ratio: (r) => r.answer, answer_verdict: (r) => r.answerVerdict, kv_held_mib: (r) => r.heldMib, kv_held_ratio: (r) => r.held, kv_ratio_16bit: (r) => r.held16, kv_read_mib: (r) => r.readMib,
  kv_read_ratio: (r) => r.read, fid_rel_l2: (r) => r.error, kernel: (r) => r.kernel, code: (r) => r.code, created_utc: (r) => r.created, row_id: (r) => r.id,
};

// No spreadsheet takes a text for a formula.
function field(value) {
  if (value == null) return '';
  const text = typeof value === 'string' && /^[=+\-@\t\r]/.test(value) ? `'${value}` : `${value}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
function downloadCsv() {
  const lines = visible().flatMap((board) => ordered(board)).map((row) => Object.values(CSV).map((of) => field(of(row))).join(','));
  const url = URL.createObjectURL(new Blob([[Object.keys(CSV).join(','), ...lines, ''].join('\r\n')], { type: 'text/csv' }));
  h('a', { href: url, download: `leaderboard-${state.tab.replace(/[^\w-]+/g, '_')}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
