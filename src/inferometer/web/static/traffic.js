// The requests of a simulation: synthetic, or from an uploaded trace. trafficForm(…).body() is what the server gets.
import { form } from "./form.js";
import { h } from "./dom.js";
import { withModel } from "./request.js";
import { on, state } from "./state.js";
import { traceFile } from "./tracefile.js";

export const EXAMPLE = 200; // requests that take a moment
const FEW = 12; // sessions that take a moment
const LENGTHS = "A number, or a distribution: uniform:min=…,max=… lognormal:mean=…,std=… zipf:a=…,min=…,max=…";
const SESSIONS = ["agents", "num_sessions", "concurrent_sessions", "max_idle", "warm_cache"];
const AGENTS = "Sessions instead of single requests: coding-agent, research-agent or chat, also as chat,turns=3";
const MORE = ["burstiness", "max_concurrency", "seed", "prefill_replicas", "decode_replicas", ...SESSIONS];
const EMPTY = { request_rate: "all at once", input_len: "as the plan", output_len: "as the plan" };
const NUMBERS = ["request_rate", "num_prompts", "burstiness", "max_concurrency", "prefill_replicas", "decode_replicas"];
const OF_SESSIONS = ["num_sessions", "concurrent_sessions", "max_idle"];
const WARM = "shared: system prompts are cached; a share such as 0.5: so many sessions are under way at the start";

function fields(traced) {
  const number = (name, label, value, more = {}) => ({ name, label, kind: "number", value, least: 0, ...more });
  const text = (name, label, placeholder, title) => ({ name, label, kind: "text", value: "", placeholder, title });
  return [
    number("request_rate", "Requests/s", () => (traced() ? "" : 4), {
      placeholder: EMPTY.request_rate,
      title: "Empty: all at once, or the trace's own rate",
    }),
    number("num_prompts", "Requests", () => (traced() ? "" : EXAMPLE), { least: 1, placeholder: "all" }),
    text("input_len", "Input tokens", EMPTY.input_len, LENGTHS),
    text("output_len", "Output tokens", EMPTY.output_len, LENGTHS),
    number("ttft", "TTFT goal", 500, { unit: "ms", placeholder: "none" }),
    number("tpot", "TPOT goal", 50, { unit: "ms", placeholder: "none" }),
    number("burstiness", "Burstiness", 1, { title: "1: Poisson arrivals; below 1: burstier; above 1: more even" }),
    number("max_concurrency", "Max. concurrency", "", {
      least: 1,
      placeholder: "no limit",
      title: "Requests in flight, at most; a new one is sent when another finishes",
    }),
    number("prefill_replicas", "Prefill replicas", "", {
      least: 1,
      placeholder: "none",
      title: "With decode replicas: prefill and decode are disaggregated",
    }),
    number("decode_replicas", "Decode replicas", "", {
      least: 1,
      placeholder: "none",
      title: "With prefill replicas: prefill and decode are disaggregated",
    }),
    number("seed", "Seed", 0),
    text("agents", "Agents", "none", AGENTS),
    number("num_sessions", "Sessions", "", { least: 1, placeholder: "100, or all" }),
    number("concurrent_sessions", "Sessions at once", "", { least: 1, placeholder: "no limit" }),
    number("max_idle", "Longest wait", "", { unit: "s", placeholder: "as it is" }),
    text("warm_cache", "Warm caches", "cold", WARM),
  ];
}

// trafficForm({ run, capacity, changed }) -> { element, body(capacity), example(), key(), … }
export function trafficForm({ run, capacity, changed }) {
  let file = null;
  const ask = form(
    "sim",
    fields(() => file?.trace),
    { button: "Simulate", run, changed },
  );
  const rates = h(
    "button",
    {
      type: "button",
      title: "Runs several rates and finds the highest at which 90% of requests meet the goals",
      onclick: capacity,
    },
    "Goodput by rate",
  );
  const label = (name) => ask.inputs[name].input.closest("label");
  const rest = h("details", { class: "inner" }, h("summary", {}, "More"), h("div", {}, MORE.map(label)));
  rest.open = MORE.some((name) => state.view[`sim_${name}`] !== undefined);
  ask.go.before(rest);
  const actions = h("div", { class: "actions" });
  ask.go.before(actions);
  file = traceFile("sim", taken);
  actions.append(ask.go, rates, file.element);

  // A trace has its own lengths and arrivals.
  function taken(trace) {
    for (const name of ["input_len", "output_len"]) ask.inputs[name].input.disabled = Boolean(trace);
    for (const [name, text] of Object.entries(EMPTY))
      ask.inputs[name].input.placeholder = trace ? "as the trace" : text;
    if (trace) for (const name of ["request_rate", "num_prompts"]) ask.inputs[name].input.value = "";
    else ask.refresh();
    if (file) changed();
  }
  on("file", file.take);

  function traffic() {
    const goals = ["ttft", "tpot"].filter((name) => ask.number(name) !== null);
    const given = { seed: ask.number("seed"), goodput: goals.map((name) => `${name}:${ask.number(name)}`).join(",") };
    for (const name of NUMBERS) given[name] = ask.number(name);
    if (ask.value("agents") || file.trace) {
      for (const name of OF_SESSIONS) given[name] = ask.number(name);
      given.warm_cache = ask.value("warm_cache");
    }
    if (ask.value("agents") && !file.trace) {
      given.agents = ask.value("agents");
      delete given.num_prompts;
      return Object.fromEntries(Object.entries(given).filter(([, v]) => v !== null && v !== ""));
    }
    if (file.trace) given.columns = file.columns;
    else for (const name of ["input_len", "output_len"]) given[name] = ask.value(name);
    if (given.burstiness === 1) delete given.burstiness;
    return Object.fromEntries(Object.entries(given).filter(([, v]) => v !== null && v !== ""));
  }

  const body = (given, plan = state.plan) => ({
    plan: withModel(plan),
    traffic: given,
    ...(file.trace ? { trace: file.trace } : {}),
  });
  return {
    ...ask,
    body: (plan) => body(traffic(), plan),
    rates() {
      const { request_rate: _, ...others } = traffic();
      return body({ ...others, find_capacity: true });
    },
    // the same traffic, of few requests
    example() {
      const given = traffic();
      if (given.agents) return body({ ...given, num_sessions: Math.min(given.num_sessions ?? FEW, FEW) });
      return body({ ...given, num_prompts: Math.min(ask.number("num_prompts") ?? EXAMPLE, EXAMPLE) });
    },
    wants: () => ask.number("num_prompts") ?? (file.trace ? Infinity : EXAMPLE),
    key: () => JSON.stringify([state.plan, traffic(), file.trace?.name]),
    refresh() {
      if (!file.trace) ask.refresh();
    },
  };
}
