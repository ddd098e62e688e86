// A simulation, played: a cursor in time, and what the replicas do then. Space plays, arrows, Home and End move.
import { h, show } from "./dom.js";
import { digits, percent, seconds } from "./format.js";
import { gantt, LEGEND } from "./gantt.js";
import { busiest, momentAt, pauseAt, PHASES, phaseAt, prepare, progressOf } from "./moment.js";
import { setView, state } from "./state.js";

const SPEEDS = [
  ["1", "1×"],
  ["10", "10×"],
  ["100", "100×"],
  ["fit", "all in 20 s"],
];
const SPANS = [
  [3600, "1 hour"],
  [600, "10 minutes"],
  [60, "1 minute"],
  [10, "10 s"],
  [1, "1 s"],
];
const LIVES = 5; // that the bars show at first, one after the other
const LABELS = {
  not_arrived: "not yet arrived",
  queued: "queued",
  prefill: "prefill",
  transfer: "KV transfer",
  decode: "decode",
  finished: "finished",
  rejected: "rejected",
};
const COLORS = { ...Object.fromEntries(LEGEND), not_arrived: "soft", finished: "grey", rejected: "vermillion" };
const KINDS = { mixed: "prefill and decode", prefill: "prefill", decode: "decode", busy: "busy", idle: "idle" };
const LISTED = { queue: 8, running: 10 };
const REDRAW = 60; // ms between two redraws of the lists while it plays

const choice = (label, options, act) => {
  const select = h(
    "select",
    { "aria-label": label, onchange: () => act(select.value) },
    options.map(([value, text]) => h("option", { value }, text)),
  );
  return select;
};

// 12.34 s with as many digits as the run's length needs
const clock = (now, end) => `${now.toFixed(end < 10 ? 3 : end < 1000 ? 2 : 0)} s`;

// ------------------------------------------------------------------ what is shown of a moment

function phaseBar(counts, role) {
  const total = counts.reduce((sum, n) => sum + n, 0);
  const labels = { ...LABELS };
  if (role === "prefill") labels.finished = "handed over";
  if (role === "decode") Object.assign(labels, { not_arrived: "not yet transferred", queued: "in transfer or queued" });
  const present = PHASES.map((name, k) => [name, counts[k]]).filter(
    ([name, n]) => n || !["transfer", "rejected"].includes(name),
  );
  const text = present.map(([name, n]) => `${digits(n, 7)} ${labels[name]}`).join(", ");
  return h(
    "div",
    { class: "phases" },
    h(
      "div",
      { class: "bar", role: "img", "aria-label": `${digits(total, 7)} requests: ${text}` },
      present.map(([name, n]) =>
        h("i", { style: `width:${(n / Math.max(total, 1)) * 100}%;background:var(--${COLORS[name]})` }),
      ),
    ),
    h(
      "dl",
      {},
      present.map(([name, n]) =>
        h(
          "div",
          { "data-phase": name },
          h("dt", {}, h("i", { style: `background:var(--${COLORS[name]})` }), labels[name]),
          h("dd", {}, digits(n, 7)),
        ),
      ),
      h("div", { "data-phase": "all" }, h("dt", {}, "all"), h("dd", {}, digits(total, 7))),
    ),
  );
}

function stepText(engines) {
  const busy = engines.filter((e) => e.kind !== "idle");
  if (!busy.length) return ["idle", ""];
  if (engines.length === 1) {
    const { kind, seconds: each, tokens, steps } = busy[0];
    const mean = steps > 1 ? `, mean of ${digits(steps, 7)} steps` : "";
    return [KINDS[kind], `${seconds(each)} · ${digits(tokens)} tokens${mean}`];
  }
  const kinds = Object.keys(KINDS).map((kind) => [kind, engines.filter((e) => e.kind === kind).length]);
  const times = busy.map((e) => e.seconds).sort((a, b) => a - b);
  return [
    kinds
      .filter(([, n]) => n)
      .map(([kind, n]) => `${n} ${KINDS[kind]}`)
      .join(", "),
    times[0] === times.at(-1) ? seconds(times[0]) : `${seconds(times[0])} to ${seconds(times.at(-1))}`,
  ];
}

function engineCard(moment, data) {
  const sum = (name) => moment.engines.reduce((total, e) => total + e[name], 0);
  const [blocks, used] = [sum("blocks"), Math.round(sum("used"))];
  const bounded = blocks < 5e8; // a state that does not grow with the tokens has no blocks to run out of
  const [kind, step] = stepText(moment.engines);
  const hit = moment.cached / Math.max(used * data.replicas[0].block_size, 1);
  const kv = `${digits(used, 8)} of ${digits(blocks, 8)} KV blocks (${percent(used / Math.max(blocks, 1))})`;
  const prefix = hit > 0.0005 ? `${percent(Math.min(hit, 1))} of them from the prefix cache` : "";
  const figure = (term, value, more) =>
    h("div", {}, h("dt", {}, term), h("dd", {}, value, more && h("small", {}, more)));
  return [
    h("h4", {}, moment.engines.length > 1 ? `${moment.engines.length} replicas` : "Engine"),
    h(
      "dl",
      { class: "facts" },
      figure("step", kind, step),
      figure("tokens/s", digits(sum("tokensPerSecond")), kind === "idle" ? "" : "over these steps, prefill included"),
      bounded && figure("KV cache", kv, prefix),
    ),
    bounded &&
      h(
        "div",
        { class: "bar", role: "img", "aria-label": kv },
        h("i", { class: "kv_cache", style: `width:${(used / Math.max(blocks, 1)) * 100}%` }),
      ),
  ];
}

function queueCard(moment, data, now) {
  const r = data.requests;
  const waits = (i) => {
    const pause = pauseAt(data, i, now);
    const since = pause ? pause[0] : now >= r.prefilled_s[i] ? r.prefilled_s[i] : r.arrival_s[i];
    return `${pause ? "preempted, " : ""}waits for ${seconds(Math.max(now - since, 0))}`;
  };
  return [
    h("h4", {}, "Queue"),
    h(
      "ol",
      {},
      moment.queue
        .slice(0, LISTED.queue)
        .map((i) =>
          h(
            "li",
            {},
            h("b", {}, `#${r.index[i]}`),
            h("span", {}, `${digits(r.input_tokens[i], 7)} tokens`),
            h("span", {}, waits(i)),
          ),
        ),
    ),
    more(moment.queue.length, LISTED.queue, "no requests waiting"),
  ];
}

function batchCard(moment, data, now) {
  const r = data.requests;
  const row = (i) => {
    const phase = phaseAt(data, i, now);
    const name = PHASES[phase];
    const { done, of } = progressOf(data, i, phase, now);
    const text = name === "transfer" ? "KV transfer" : `${name} ${digits(done, 7)} of ${digits(of, 7)}`;
    const share = name === "transfer" ? 1 : done / Math.max(of, 1);
    return h(
      "li",
      {},
      h("b", {}, `#${r.index[i]}`),
      h("span", { class: "bar" }, h("i", { style: `width:${share * 100}%;background:var(--${COLORS[name]})` })),
      h("span", {}, text),
    );
  };
  const order = [...moment.running].sort((a, b) => r.scheduled_s[a] - r.scheduled_s[b]);
  return [
    h("h4", {}, "Running batch"),
    h("ol", {}, order.slice(0, LISTED.running).map(row)),
    more(order.length, LISTED.running, "no requests running"),
  ];
}

const more = (total, listed, none) =>
  h("p", { class: "note" }, total === 0 ? none : total > listed ? `and ${digits(total - listed, 7)} more` : "");

// ------------------------------------------------------------------ the player

// replayer(oncursor) -> { element, draw(run), seek(time) }
export function replayer(oncursor) {
  let [data, played, now, playing, frame, before, shownAt] = [null, null, 0, false, 0, 0, 0];
  const play = h("button", { type: "button", class: "go", onclick: () => toggle() }, "Play");
  const bar = h("input", { type: "range", min: "0", step: "any", "aria-label": "Time of the replay" });
  const time = h("output", {});
  const speed = choice("Speed", SPEEDS, (value) => setView({ sim_speed: value === "10" ? null : value }, true));
  const which = choice("Replica", [["", "all replicas"]], (value) => keep({ sim_replica: value }));
  const span = choice("Span of time", [], (value) => keep({ sim_span: value }));
  const bars = gantt((to) => seek(to));
  const place = h("div", { class: "moment", "aria-live": "off" });
  const note = h("span", { class: "note" });
  const legend = h("div", { class: "legend" });
  const element = h(
    "figure",
    { class: "chart replay", id: "replay" },
    h("figcaption", {}, h("div", {}, h("h3", {}, "Replay"), note)),
    h("div", { class: "player" }, play, bar, time, labelled("Speed", speed), labelled("Replica", which)),
    place,
    h("div", { class: "player" }, legend, labelled("Show", span)),
    bars.element,
  );
  bar.addEventListener("input", () => seek(Number(bar.value)));
  element.addEventListener("keydown", onkey);

  const replica = () => (which.value === "" ? null : Number(which.value));
  const rate = () => (speed.value === "fit" ? data.end_s / 20 : Number(speed.value));

  function keep(changes) {
    setView(changes, true);
    drawBars();
    refresh(true);
  }

  function onkey(event) {
    if (!data || ["SELECT", "SUMMARY", "BUTTON"].includes(event.target.tagName)) return;
    const hop = data.end_s / (event.shiftKey ? 20 : 200);
    const to = { ArrowRight: now + hop, ArrowLeft: now - hop, ArrowUp: now + hop, ArrowDown: now - hop }[event.key];
    const jump = { Home: 0, End: data.end_s }[event.key];
    if (event.key === " ") toggle();
    else if (to !== undefined || jump !== undefined) seek(to ?? jump);
    else return;
    event.preventDefault();
  }

  const remember = () => setView({ sim_t: String(Number(now.toPrecision(6))) }, true);

  function toggle(wanted = !playing) {
    playing = wanted;
    play.textContent = playing ? "Pause" : "Play";
    cancelAnimationFrame(frame);
    if (!playing) return remember();
    if (now >= data.end_s) now = 0;
    before = performance.now();
    frame = requestAnimationFrame(tick);
  }

  function tick(at) {
    if (!element.isConnected || !element.offsetParent) return toggle(false); // another tab is open
    now = Math.min(data.end_s, now + (Math.max(at - before, 0) / 1e3) * rate());
    before = at;
    refresh(now >= data.end_s);
    if (now >= data.end_s) return toggle(false);
    frame = requestAnimationFrame(tick);
  }

  function seek(to) {
    now = Math.min(data.end_s, Math.max(0, to));
    if (playing) before = performance.now();
    else remember();
    refresh(true);
  }

  // The part of the run that the bars show: pages of it, so that they stand still while the cursor moves.
  let page = "";
  function spanNow() {
    const wide = span.value === "all" ? data.end_s : Number(span.value);
    if (wide >= data.end_s) return [0, data.end_s || 1];
    const start = Math.min(Math.floor(now / wide) * wide, data.end_s);
    return [start, start + wide];
  }
  // A span of time in which a request is a bar, not a dot
  function legibleSpan() {
    const r = data.requests;
    const lives = data.order.map((i) => r.finished_s[i] - r.arrival_s[i]).filter(Number.isFinite);
    const life = lives.sort((a, b) => a - b)[lives.length >> 1] ?? 0;
    return [...span.options].findLast(({ value }) => value >= LIVES * life)?.value ?? "all";
  }
  function drawBars() {
    const [from, to] = spanNow();
    page = `${from} ${to}`;
    bars.draw(data, replica(), [from, to]);
  }

  function refresh(whole) {
    bar.value = now;
    time.textContent = `${clock(now, data.end_s)} of ${clock(data.end_s, data.end_s)}`;
    bar.setAttribute("aria-valuetext", time.textContent);
    if (spanNow().join(" ") !== page) drawBars();
    bars.cursor(now);
    oncursor(now);
    const at = performance.now();
    if (!whole && at - shownAt < REDRAW) return;
    shownAt = at;
    const moment = momentAt(data, now, replica());
    const role = replica() === null ? null : data.replicas[replica()].role;
    show(
      place,
      phaseBar(moment.counts, role),
      h("div", { class: "card" }, engineCard(moment, data)),
      h("div", { class: "card" }, queueCard(moment, data, now)),
      h("div", { class: "card" }, batchCard(moment, data, now)),
    );
  }

  function choices() {
    const word = { both: "replica", prefill: "prefill", decode: "decode" };
    show(
      which,
      h("option", { value: "" }, "all replicas"),
      data.replicas.map((one, k) => h("option", { value: String(k) }, `${word[one.role]} ${k}`)),
    );
    which.parentElement.hidden = data.replicas.length < 2;
    which.value = data.replicas[Number(state.view.sim_replica ?? NaN)] ? state.view.sim_replica : "";
    speed.value = SPEEDS.some(([value]) => value === state.view.sim_speed) ? state.view.sim_speed : "10";
    const shorter = SPANS.filter(([wide]) => wide < data.end_s);
    show(
      span,
      [["all", "the whole run"], ...shorter].map(([value, text]) => h("option", { value }, text)),
    );
    span.value = state.view.sim_span ?? "";
    if (!span.value) span.value = legibleSpan();
    const transfers = data.replicas.some((one) => one.role !== "both");
    show(
      legend,
      LEGEND.filter(([name]) => transfers || name !== "transfer").map(([name, color]) =>
        h("span", {}, h("i", { style: `background:var(--${color})` }), LABELS[name]),
      ),
      h("span", {}, h("i", { class: "tick" }), "first token"),
      Object.keys(data.goals).length > 0 && h("span", {}, h("i", { class: "dot" }), "a goal missed"),
    );
  }

  function begin(run) {
    if (playing) toggle(false);
    [data, played] = [prepare(run), run];
    const kept = Number(state.view.sim_t ?? NaN);
    now = kept >= 0 && kept <= data.end_s ? kept : busiest(data);
    bar.max = data.end_s;
    note.textContent =
      (data.sampled
        ? `${digits(data.order.length, 7)} of ${digits(data.num_requests, 7)} requests, a random sample, are shown;  `
        : "") +
      (data.num_replicas > data.replicas.length ? `the first ${data.replicas.length} replicas; ` : "") +
      "space plays, arrow keys move;  tokens are spread evenly over each phase";
  }

  return {
    element,
    seek,
    draw(run) {
      element.hidden = !run?.completed || !run.replay?.requests.index.length;
      if (element.hidden) return;
      if (run !== played) begin(run);
      choices();
      drawBars();
      refresh(true);
    },
  };
}

const labelled = (text, control) => h("label", { class: "labelled" }, h("span", {}, text), control);
