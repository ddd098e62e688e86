// The requests of a simulation: made up, or of a trace that is uploaded. trafficForm(…).body() is what the server gets.
import { form } from "./form.js";
import { h, say } from "./dom.js";
import { bytes } from "./format.js";
import { withModel } from "./request.js";
import { on, state } from "./state.js";

export const EXAMPLE = 200; // requests that take a moment
const LENGTHS = "A number, or how it varies: uniform:min=…,max=… lognormal:mean=…,std=… zipf:a=…,min=…,max=…";
const FORMATS =
  "CSV or JSON lines with input_tokens, output_tokens, arrival_s; or Azure's, Mooncake's, BurstGPT's columns";
const MORE = ["burstiness", "max_concurrency", "seed", "prefill_replicas", "decode_replicas", "columns"];
const NUMBERS = ["request_rate", "num_prompts", "burstiness", "max_concurrency", "prefill_replicas", "decode_replicas"];

function fields(traced) {
  const number = (name, label, value, more = {}) => ({ name, label, kind: "number", value, least: 0, ...more });
  const text = (name, label, placeholder, title) => ({ name, label, kind: "text", value: "", placeholder, title });
  return [
    number("request_rate", "Requests/s", () => (traced() ? "" : 4), {
      placeholder: "all at once",
      title: "Empty: all at once, or as the trace says",
    }),
    number("num_prompts", "Requests", () => (traced() ? "" : EXAMPLE), { least: 1, placeholder: "all" }),
    text("input_len", "Input tokens", "as the plan", LENGTHS),
    text("output_len", "Output tokens", "as the plan", LENGTHS),
    number("ttft", "TTFT goal", 500, { unit: "ms", placeholder: "none" }),
    number("tpot", "TPOT goal", 50, { unit: "ms", placeholder: "none" }),
    number("burstiness", "Burstiness", 1, { title: "1: Poisson; less comes in bursts, more is more even" }),
    number("max_concurrency", "Max. concurrency", "", {
      least: 1,
      placeholder: "no limit",
      title: "Requests that are under way at once at most: the others are sent when one has finished",
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
    text("columns", "Columns of the trace", "by their names", "input_tokens=a,output_tokens=b: what its columns are"),
  ];
}

// trafficForm({ run, capacity, changed }) -> { element, body(capacity), example(), key(), … }
export function trafficForm({ run, capacity, changed }) {
  let trace = null;
  const ask = form(
    "sim",
    fields(() => trace),
    { button: "Simulate", run, changed },
  );
  const rates = h(
    "button",
    {
      type: "button",
      title: "Runs several rates and finds the highest at which 90% of the requests keep the goals",
      onclick: capacity,
    },
    "Goodput by rate",
  );
  const chosen = h("span", { class: "note" }, FORMATS);
  const file = h("input", {
    type: "file",
    id: "trace-file",
    class: "unseen",
    accept: ".csv,.jsonl,.json,.txt,text/csv",
    onchange: () => {
      if (file.files[0]) take(file.files[0]);
      file.value = "";
    },
  });
  const away = h("button", { type: "button", hidden: true, onclick: () => take(null) }, "Remove the trace");
  const label = (name) => ask.inputs[name].input.closest("label");
  const rest = h("details", { class: "inner" }, h("summary", {}, "More"), h("div", {}, MORE.map(label)));
  rest.open = MORE.some((name) => state.view[`sim_${name}`] !== undefined);
  ask.go.before(rest);
  const actions = h("div", { class: "actions" });
  ask.go.before(actions);
  actions.append(
    ...[ask.go, rates, h("label", { class: "button", for: "trace-file" }, "Upload a trace"), file, away, chosen],
  );
  label("columns").hidden = true;

  async function take(given) {
    if (given && given.size > 20e6) return say(`${given.name} has ${bytes(given.size)}; a trace may have 20 MB`);
    trace = given && { name: given.name, text: await given.text() };
    chosen.textContent = trace ? `${trace.name}: its own lengths and arrivals` : FORMATS;
    away.hidden = !trace;
    label("columns").hidden = !trace;
    for (const name of ["input_len", "output_len"]) ask.inputs[name].input.disabled = Boolean(trace);
    for (const name of ["input_len", "output_len", "request_rate"])
      ask.inputs[name].input.placeholder = trace
        ? "as the trace"
        : name === "request_rate"
          ? "all at once"
          : "as the plan";
    if (trace) for (const name of ["request_rate", "num_prompts"]) ask.inputs[name].input.value = "";
    else ask.refresh();
    changed();
  }
  on("file", take);

  function traffic() {
    const goals = ["ttft", "tpot"].filter((name) => ask.number(name) !== null);
    const given = { seed: ask.number("seed"), goodput: goals.map((name) => `${name}:${ask.number(name)}`).join(",") };
    for (const name of NUMBERS) given[name] = ask.number(name);
    for (const name of trace ? ["columns"] : ["input_len", "output_len"]) given[name] = ask.value(name);
    if (given.burstiness === 1) delete given.burstiness;
    return Object.fromEntries(Object.entries(given).filter(([, v]) => v !== null && v !== ""));
  }

  const body = (given, plan = state.plan) => ({ plan: withModel(plan), traffic: given, ...(trace ? { trace } : {}) });
  return {
    ...ask,
    body: (plan) => body(traffic(), plan),
    rates() {
      const { request_rate: _, ...others } = traffic();
      return body({ ...others, find_capacity: true });
    },
    // the same traffic, of few requests
    example: () => body({ ...traffic(), num_prompts: Math.min(ask.number("num_prompts") ?? EXAMPLE, EXAMPLE) }),
    wants: () => ask.number("num_prompts") ?? (trace ? Infinity : EXAMPLE),
    key: () => JSON.stringify([state.plan, traffic(), trace?.name]),
    refresh() {
      if (!trace) ask.refresh();
    },
  };
}
