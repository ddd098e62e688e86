// A simulation at one moment: who waits, who runs, how full the caches are. Pure functions of the data of a replay.

export const PHASES = ["not_arrived", "queued", "prefill", "transfer", "decode", "finished", "rejected"];
const [EARLY, QUEUED, PREFILL, TRANSFER, DECODE, FINISHED, REJECTED] = PHASES.keys();

// What a request's phase means to the replicas of one side, where prefill and decode are disaggregated.
const SIDES = {
  prefill: { [TRANSFER]: FINISHED, [DECODE]: FINISHED },
  decode: { [QUEUED]: EARLY, [PREFILL]: EARLY, [TRANSFER]: QUEUED },
};
const APART = ["prefill_first", "static"]; // schedulers whose steps with prompts decode nothing

// prepare(run) -> the replay in typed arrays; what never comes is at Infinity
export function prepare(run) {
  const replay = run.replay;
  const columns = Object.fromEntries(
    Object.entries(replay.requests).map(([name, values]) => [name, Float64Array.from(values, (v) => v ?? Infinity)]),
  );
  const pauses = new Map();
  for (const [place, start, stop] of replay.pauses) {
    if (!pauses.has(place)) pauses.set(place, []);
    pauses.get(place).push([start, stop]);
  }
  const order = [...columns.index.keys()].sort((a, b) => columns.arrival_s[a] - columns.arrival_s[b] || a - b);
  return {
    ...replay,
    requests: columns,
    pauses,
    order,
    rejected: new Set(replay.rejected),
    sampled: replay.num_requests > order.length,
    goals: run.goodput ?? {},
    apart: APART.includes(run.scheduler),
  };
}

export const pauseAt = (data, i, now) => data.pauses.get(i)?.find(([start, stop]) => start <= now && now < stop);

// The phase of a request: its place in PHASES
export function phaseAt(data, i, now) {
  const r = data.requests;
  if (!(now >= r.arrival_s[i])) return EARLY;
  if (data.rejected.has(i)) return REJECTED;
  if (now >= r.finished_s[i]) return FINISHED;
  if (data.pauses.size && pauseAt(data, i, now)) return QUEUED;
  if (now >= r.decode_s[i]) return DECODE;
  if (now >= r.prefilled_s[i]) return TRANSFER;
  return now >= r.scheduled_s[i] ? PREFILL : QUEUED;
}

// Whether a request is of the replica that is shown (null: of all)
export function belongs(data, i, replica) {
  if (replica === null) return true;
  if (data.rejected.has(i)) return false;
  const r = data.requests;
  return (data.replicas[replica].role === "prefill" ? r.prefill_replica[i] : r.replica[i]) === replica;
}

// How far a request is: { phase, done, of } in tokens, spread evenly over the phase
export function progressOf(data, i, phase, now) {
  const r = data.requests;
  const share = (start, stop) => Math.min(1, Math.max(0, (now - start) / Math.max(stop - start, 1e-12)));
  if (phase === PREFILL) {
    const fresh = (r.input_tokens[i] - r.cached_tokens[i]) * share(r.scheduled_s[i], r.prefilled_s[i]);
    return { phase: "prefill", done: Math.floor(r.cached_tokens[i] + fresh), of: r.input_tokens[i] };
  }
  const begun = now >= r.first_token_s[i] ? 1 : 0;
  const more = Math.max(r.output_tokens[i] - 1, 0) * share(r.first_token_s[i], r.finished_s[i]);
  return { phase: "decode", done: Math.floor(begun + begun * more), of: r.output_tokens[i] };
}

// Why a request is not good: ["TTFT 812 ms > 500 ms"]; empty if it keeps the goals
export function missed(data, i, text) {
  const r = data.requests;
  if (data.rejected.has(i)) return ["rejected"];
  const first = r.first_token_s[i] - r.arrival_s[i];
  const whole = r.finished_s[i] - r.arrival_s[i];
  const gaps = r.output_tokens[i] - 1;
  const latencies = { ttft: first, tpot: gaps > 0 ? (whole - first) / gaps : 0, e2el: whole };
  return Object.entries(data.goals)
    .filter(([name, limit]) => latencies[name] * 1e3 > limit)
    .map(([name, limit]) => `${name.toUpperCase()} ${text(latencies[name] * 1e3)} > ${text(limit)}`);
}

// The first sample at or after a time, whose rates are those of the time before it; -1 after the last one
function sampleAt(samples, now) {
  const times = samples.time_s;
  if (!times.length || now > times.at(-1)) return -1;
  let [low, high] = [0, times.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < now) low = middle + 1;
    else high = middle;
  }
  return low;
}

// What is in a step follows from the requests; where only some are known, just whether there is a step
function stepKind(data, prefills, decodes, active) {
  if (data.sampled) return active ? "busy" : "idle";
  if (prefills && decodes) return data.apart ? "prefill" : "mixed";
  return prefills ? "prefill" : decodes ? "decode" : "idle";
}

function engineAt(data, samples, prefills, decodes, now) {
  const at = sampleAt(samples, now);
  const value = (name) => (at < 0 ? 0 : (samples[name][at] ?? 0));
  const kind = stepKind(data, prefills, decodes, value("running"));
  const works = kind !== "idle";
  const settled = works ? at : at < 0 ? samples.time_s.length - 1 : at - 1; // between steps nothing changes
  return {
    kind,
    blocks: samples.num_blocks,
    used: (samples.kv_used[settled] ?? 0) * samples.num_blocks,
    tokensPerSecond: works ? value("tokens_per_s") : 0,
    seconds: works ? value("step_s") : 0,
    tokens: works ? value("batch_tokens") : 0,
    steps: works ? value("steps") : 0, // of which these are the means
  };
}

// momentAt(data, 12.5, null) -> { counts, queue, running, engines, cached }: requests by their places
export function momentAt(data, time, replica) {
  const now = data.sampled ? countedAt(data, time).time : time;
  const role = replica === null ? null : data.replicas[replica].role;
  const side = SIDES[role] ?? {};
  const counts = new Array(PHASES.length).fill(0);
  const prefills = new Array(data.replicas.length).fill(0);
  const decodes = new Array(data.replicas.length).fill(0);
  const [queue, running] = [[], []];
  let cached = 0;
  const r = data.requests;
  for (const i of data.order) {
    if (replica !== null && !belongs(data, i, replica)) continue;
    const own = phaseAt(data, i, now);
    const phase = side[own] ?? own;
    counts[phase] += 1;
    if (phase === QUEUED) queue.push(i);
    if (phase === PREFILL) prefills[r.prefill_replica[i]] += 1;
    if (phase === DECODE) decodes[r.replica[i]] += 1;
    if (phase === PREFILL || phase === DECODE || phase === TRANSFER) running.push(i);
    if (phase === PREFILL || (phase === DECODE && role === null)) cached += r.cached_tokens[i];
  }
  const all = replica === null && data.sampled ? countedAt(data, time).counts : counts;
  const engines = data.replicas
    .map((samples, number) => engineAt(data, samples, prefills[number], decodes[number], now))
    .filter((_, number) => replica === null || number === replica);
  return { counts: all, queue, running, engines, cached };
}

// Of more requests than are played, all are counted at a thousand moments; the last of them before a time.
function countedAt(data, time) {
  const last = data.counts.time_s.length - 1;
  const at = Math.min(last, Math.floor((time / Math.max(data.end_s, 1e-12)) * last + 1e-9));
  return { time: data.counts.time_s[at], counts: PHASES.map((name) => data.counts[name][at]) };
}

// When the most requests are in the system, and of those moments when the most of them run: where a replay begins
export function busiest(data) {
  const { time_s: times, queued, prefill, transfer, decode } = data.counts;
  const runs = (at) => prefill[at] + transfer[at] + decode[at];
  const inside = times.map((_, at) => queued[at] + runs(at));
  const most = Math.max(...inside);
  const best = times.reduce(
    (best, _, at) => (inside[at] === most && runs(at) > runs(best) ? at : best),
    inside.indexOf(most),
  );
  return times[best] ?? 0;
}
