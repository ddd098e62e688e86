// Tab: requests through an engine, one by one. A trace, or made up; the engine over time, latencies, goodput by rate.
import { job, Refused } from "./api.js";
import { withModel } from "./request.js";
import { form, progress, table } from "./form.js";
import { h, say, show } from "./dom.js";
import { bytes, digits, milliseconds, percent } from "./format.js";
import { simulationCharts } from "./simulation.js";
import { on, state } from "./state.js";

const LENGTHS = "A number, or how it varies: uniform:min=…,max=… lognormal:mean=…,std=… zipf:a=…,min=…,max=…";
const NAMES = [
  ["ttft", "TTFT"],
  ["tpot", "TPOT"],
  ["itl", "between tokens"],
  ["e2el", "end to end"],
];

export const simulateView = {
  id: "simulate",
  label: "Simulate",
  asks: true,
  alone: true,
  mount(host) {
    let [answer, before, rates, running, trace] = [null, null, null, null, null];
    const ask = form(
      "sim",
      [
        {
          name: "request_rate",
          label: "Requests/s",
          kind: "number",
          value: 4,
          least: 0,
          title: "Empty: all at once, or as the trace says",
        },
        {
          name: "num_prompts",
          label: "Requests",
          kind: "number",
          value: () => (trace ? "" : 500),
          least: 1,
          placeholder: "all",
        },
        {
          name: "input_len",
          label: "Input tokens",
          kind: "text",
          value: "",
          placeholder: "as in the plan",
          title: LENGTHS,
        },
        {
          name: "output_len",
          label: "Output tokens",
          kind: "text",
          value: "",
          placeholder: "as in the plan",
          title: "Likewise",
        },
        {
          name: "burstiness",
          label: "Burstiness",
          kind: "number",
          value: 1,
          least: 0,
          title: "1: Poisson; less comes in bursts, more is more even",
        },
        {
          name: "max_concurrency",
          label: "At once at most",
          kind: "number",
          value: "",
          least: 1,
          placeholder: "no limit",
        },
        { name: "ttft", label: "TTFT goal", unit: "ms", kind: "number", value: 500, least: 0 },
        { name: "tpot", label: "TPOT goal", unit: "ms", kind: "number", value: 50, least: 0 },
        { name: "seed", label: "Seed", kind: "number", value: 0, least: 0 },
      ],
      { button: "Simulate", run: () => go(false) },
    );
    const many = h(
      "button",
      {
        type: "button",
        title: "Runs several rates and finds the highest at which 90% of the requests keep the goals",
        onclick: () => go(true),
      },
      "Goodput by rate",
    );
    ask.go.after(many);
    const chosen = h("span", { class: "note" });
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
    const away = h("button", { type: "button", hidden: true, onclick: () => take(null) }, "Without it");
    const upload = h(
      "div",
      { class: "bar-of-view" },
      h("label", { class: "button", for: "trace-file" }, "Upload a trace"),
      file,
      chosen,
      away,
    );
    const bar = progress();
    const summary = h("div", { class: "sentences" });
    host.append(
      h(
        "p",
        { class: "note" },
        "Serves requests with the plan on the left, step by step as the engine would; " +
          "its batch size does not count, arrivals decide.",
      ),
      upload,
      ask.element,
      bar.element,
      summary,
    );
    const charts = simulationCharts(
      host,
      () => answer?.command ?? "",
      () => rates?.command ?? "",
    );
    const below = h("div", {});
    host.append(below);

    async function take(given) {
      if (given && given.size > 20e6) return say(`${given.name} has ${bytes(given.size)}; a trace may have 20 MB`);
      trace = given && { name: given.name, text: await given.text() };
      chosen.textContent = trace
        ? `${trace.name}: its own lengths and arrivals`
        : "CSV or JSON lines: input_tokens, output_tokens, arrival_s; or Azure's, Mooncake's, BurstGPT's columns";
      away.hidden = !trace;
      for (const name of ["input_len", "output_len"]) ask.inputs[name].input.disabled = Boolean(trace);
      if (trace) for (const name of ["request_rate", "num_prompts"]) ask.inputs[name].input.value = "";
      else ask.refresh();
    }
    take(null);
    on("file", take);

    async function go(capacity) {
      if (running) return say("a simulation is under way: cancel it first");
      const goals = ["ttft", "tpot"]
        .filter((name) => ask.number(name) !== null)
        .map((name) => `${name}:${ask.number(name)}`)
        .join(",");
      const traffic = { seed: ask.number("seed") };
      for (const name of ["request_rate", "num_prompts", "burstiness", "max_concurrency"])
        traffic[name] = ask.number(name);
      if (!trace) for (const name of ["input_len", "output_len"]) traffic[name] = ask.value(name) || null;
      if (traffic.burstiness === 1) delete traffic.burstiness;
      if (goals) traffic.goodput = goals;
      if (capacity) {
        traffic.find_capacity = true;
        delete traffic.request_rate;
      }
      const body = {
        plan: withModel(state.plan),
        traffic: Object.fromEntries(Object.entries(traffic).filter(([, v]) => v !== null)),
        ...(trace ? { trace } : {}),
      };
      const current = job("/api/simulate", body, (share, text) => bar.update(share, text));
      running = current;
      bar.show(current.stop);
      ask.refuse();
      try {
        const result = await current.done;
        if (capacity) rates = result;
        else [answer, before] = [result, null];
        if (state.pinned && !capacity) {
          // the same requests with the pinned plan
          draw();
          running = job("/api/simulate", { ...body, plan: withModel(state.pinned) }, (share, text) =>
            bar.update(share, `pinned: ${text ?? ""}`),
          );
          bar.show(running.stop);
          before = await running.done;
          running = current;
        }
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        ask.refuse(error.message);
      }
      bar.hide();
      running = null;
      draw();
    }

    function draw() {
      if (answer) {
        const good = answer.request_goodput ?? null;
        show(
          summary,
          h(
            "p",
            { class: "first" },
            `${digits(answer.completed, 7)} requests in ${digits(answer.duration)} s: ` +
              `${digits(answer.request_throughput)} requests/s, ${digits(answer.output_throughput)} output tokens/s`,
          ),
          good !== null &&
            answer.goodput &&
            h("p", {}, `${digits(good)} requests/s keep the goals (${percent(good / answer.request_throughput)})`),
          h(
            "p",
            { class: "note" },
            [
              answer.traffic,
              answer.machine,
              answer.scheduler && `scheduler ${answer.scheduler}`,
              answer.preemptions ? `${answer.preemptions} preemptions` : "",
              answer.prefix_cache_hit_rate ? `prefix cache hits ${percent(answer.prefix_cache_hit_rate)}` : "",
              answer.rejected ? `${answer.rejected} rejected` : "",
            ]
              .filter(Boolean)
              .join(" · "),
          ),
          answer.reason && h("p", { class: "problem" }, answer.reason),
          Object.entries(answer.rejection_reasons ?? {}).map(([why, n]) =>
            h("p", { class: "warning" }, `${n} × ${why}`),
          ),
          (answer.warnings ?? []).map((w) => h("p", { class: "warning" }, w)),
        );
        show(
          below,
          answer.completed > 0 &&
            table(
              "Latencies",
              ["", "mean", "median", "p90", "p99", ...(before ? ["pinned: mean", "p99"] : [])],
              NAMES.filter(([key]) => answer[`mean_${key}_ms`] != null).map(([key, word]) => ({
                cells: [
                  word,
                  ...["mean", "median", "p90", "p99"].map((q) => milliseconds(answer[`${q}_${key}_ms`])),
                  ...(before ? ["mean", "p99"].map((q) => milliseconds(before[`${q}_${key}_ms`])) : []),
                ],
              })),
            ),
        );
      }
      charts.draw(answer, rates, before);
    }
    return {
      draw() {
        ask.refresh();
        draw();
      },
    };
  },
};
