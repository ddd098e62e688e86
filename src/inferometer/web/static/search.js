// Tab: which deployment to run on some GPUs. The Pareto front, the region that keeps the limits, and how to start it.
import { job, Refused } from "./api.js";
import { withModel } from "./request.js";
import { chart, halfDecades } from "./chart.js";
import { form, progress, table } from "./form.js";
import { copy, h, show } from "./dom.js";
import { digits, milliseconds, percent } from "./format.js";
import { setPlan, state } from "./state.js";
import { palette, tint } from "./theme.js";

const ENGINES = { vllm: "vLLM", sglang: "SGLang", trtllm: "TensorRT-LLM", bench: "and measure it" };

function layout(pool) {
  const sizes = { tp: pool.tensor_parallel_size, pp: pool.pipeline_parallel_size, dp: pool.data_parallel_size };
  const parts = Object.entries(sizes)
    .filter(([, n]) => n > 1)
    .map(([name, n]) => `${name}${n}`);
  return [...(parts.length ? parts : ["tp1"]), ...(pool.enable_expert_parallel ? ["ep"] : [])].join("·");
}

// "4 × tp1 fp8, KV fp8", or "3 × tp1 → 1 × tp1 …" for pools that read and pools that answer
function label({ pools: [first, second] }) {
  const decode = second ? ` → ${second.replicas} × ${layout(second)}` : "";
  return `${first.replicas} × ${layout(first)}${decode} ${first.quantization}, KV ${first.kv_cache_dtype}`;
}

// One server of a plan as the plan on the left; of two pools the one that answers.
function planArgs(candidate) {
  const pool = candidate.pools.at(-1);
  return {
    gpu: candidate.gpu,
    tensor_parallel_size: pool.tensor_parallel_size,
    pipeline_parallel_size: pool.pipeline_parallel_size,
    data_parallel_size: pool.data_parallel_size,
    enable_expert_parallel: pool.enable_expert_parallel,
    quantization: pool.quantization,
    kv_cache_dtype: pool.kv_cache_dtype,
    max_num_batched_tokens: pool.max_num_batched_tokens,
    max_num_seqs: pool.max_num_seqs,
  };
}

// The same out of a point of the front, which is a sentence.
function planArgsOfPoint(point) {
  const [servers, kv] = point.plan.split(", KV ");
  const parts = servers.split(" ");
  const sizes = Object.fromEntries(
    [...parts.at(-2).matchAll(/(tp|pp|dp)(\d+)/g)].map(([, name, n]) => [name, Number(n)]),
  );
  return {
    gpu: point.gpu,
    tensor_parallel_size: sizes.tp ?? 1,
    pipeline_parallel_size: sizes.pp ?? 1,
    data_parallel_size: sizes.dp ?? 1,
    enable_expert_parallel: parts.at(-2).includes("ep"),
    quantization: parts.at(-1),
    kv_cache_dtype: kv,
    max_num_batched_tokens: point.max_num_batched_tokens ?? null,
  };
}

export const searchView = {
  id: "search",
  label: "Search",
  asks: true,
  alone: true,
  mount(host) {
    let answer = null;
    let running = null;
    const ask = form(
      "search",
      [
        {
          name: "num_gpus",
          label: "GPUs",
          kind: "number",
          value: 8,
          least: 1,
          title: "GPUs to use, of the machine's type on the left",
        },
        {
          name: "gpu",
          label: "GPU types",
          kind: "text",
          value: () => state.plan.gpu ?? "h100-sxm",
          title: "One or several, with commas",
        },
        { name: "ttft", label: "TTFT at most", unit: "ms", kind: "number", value: 500, least: 0 },
        { name: "tpot", label: "TPOT at most", unit: "ms", kind: "number", value: 50, least: 0 },
        {
          name: "request_rate",
          label: "Requests/s",
          kind: "number",
          value: "",
          placeholder: "as many as hold",
          title: "Rate to carry; empty: as many as hold",
        },
        {
          name: "objective",
          label: "Best is",
          kind: "choice",
          value: "throughput",
          choices: () => [
            ["throughput", "most throughput"],
            ["cost", "least cost"],
            ["latency", "least latency"],
            ["energy", "least energy"],
          ],
        },
        {
          name: "mode",
          label: "Servers",
          kind: "choice",
          value: "both",
          choices: () => [
            ["both", "any"],
            ["aggregated", "one kind"],
            ["disaggregated", "prefill and decode apart"],
          ],
        },
      ],
      { button: "Search", run: () => go() },
    );
    const bar = progress();
    const said = h("div", { class: "sentences" });
    host.append(
      h(
        "p",
        { class: "note" },
        "Prices every legal plan for the model and lengths on the left, simulates the best, and says which to run. " +
          "Layout and precision are searched.",
      ),
      ask.element,
      bar.element,
      said,
    );
    const one = chart(host, {
      name: "pareto",
      title: "Throughput against speed for one user",
      height: 460,
      command: () => answer?.command ?? "",
      onpick: (point) => point.customdata && setPlan(point.customdata),
    });
    one.element.hidden = true;
    const below = h("div", {});
    host.append(below);

    async function go() {
      running?.stop();
      const limits = ["ttft", "tpot"]
        .filter((name) => ask.number(name) !== null)
        .map((name) => `${name}:${ask.number(name)}`)
        .join(",");
      const options = {
        num_gpus: ask.number("num_gpus"),
        gpu: ask.value("gpu") || null,
        goodput: limits || null,
        request_rate: ask.number("request_rate"),
        objective: ask.value("objective"),
        mode: ask.value("mode"),
      };
      const plan = withModel(state.plan);
      if (options.gpu !== (plan.gpu ?? "h100-sxm")) delete plan.gpu_figures;
      else delete options.gpu;
      const current = job(
        "/api/search",
        { plan, ...Object.fromEntries(Object.entries(options).filter(([, v]) => v !== null)) },
        (share, text) => bar.update(share, text),
      );
      running = current;
      bar.show(current.stop);
      ask.refuse();
      try {
        answer = await current.done;
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        if (running === current) ask.refuse(error.message);
      }
      if (running === current) {
        bar.hide();
        running = null;
      }
      draw();
    }

    function pareto() {
      const p = palette();
      const { front, plans, goodput } = answer;
      const least = goodput.tpot ? 1e3 / goodput.tpot : 0;
      const keeps = (f) => f.output_throughput_per_user >= least && f.ttft_ms <= (goodput.ttft ?? Infinity);
      const text = (f, name, how) =>
        `<b>${name}</b><br>${digits(f.output_throughput_per_gpu)} tokens/s per GPU, ` +
        `${digits(f.output_throughput_per_user)} for a user<br>TTFT ${milliseconds(f.ttft_ms)}` +
        (f.cost_per_million_output_tokens ? `, $${digits(f.cost_per_million_output_tokens)} per M` : "") +
        `<br>${how}`;
      const simulated = plans.filter((c) => c.simulated);
      const dots = (rows, name, marker, get, planOf, how) => ({
        type: "scatter",
        mode: "markers",
        name,
        marker,
        x: rows.map((r) => get(r).output_throughput_per_user),
        y: rows.map((r) => get(r).output_throughput_per_gpu),
        customdata: rows.map(planOf),
        hoverinfo: "text",
        hovertext: rows.map((r) => text(get(r), r.plan ?? label(r), how)),
      });
      const sorted = [...front].sort((a, b) => a.output_throughput_per_user - b.output_throughput_per_user);
      const same = (r) => r;
      const won = (c) => c.verdict === "wins";
      const traces = [
        {
          type: "scatter",
          mode: "lines",
          name: "Pareto front, priced",
          hoverinfo: "skip",
          x: sorted.map((f) => f.output_throughput_per_user),
          y: sorted.map((f) => f.output_throughput_per_gpu),
          line: { color: p.muted, width: 1.2 },
        },
        dots(
          sorted.filter((f) => !keeps(f)),
          "misses a limit",
          { size: 7, color: p.faint, line: { color: p.muted, width: 1 } },
          same,
          planArgsOfPoint,
          "priced; misses a limit",
        ),
        dots(
          sorted.filter(keeps),
          "keeps the limits",
          { size: 8, color: p.blue },
          same,
          planArgsOfPoint,
          "priced; keeps the limits",
        ),
        dots(
          simulated.filter((c) => !won(c)),
          "simulated",
          { size: 10, symbol: "diamond", color: p.orange, line: { color: p.paper, width: 1 } },
          (c) => c.simulated,
          planArgs,
          "simulated",
        ),
        dots(
          simulated.filter(won),
          "the winner",
          { size: 19, symbol: "star", color: p.vermillion, line: { color: p.paper, width: 1 } },
          (c) => c.simulated,
          planArgs,
          "simulated; wins",
        ),
      ].filter((trace) => trace.x.length);
      const xs = traces.flatMap((t) => t.x);
      const [left, right] = [Math.min(...xs, least || Infinity) * 0.88, Math.max(...xs) * 1.15];
      one.draw(
        traces,
        {
          xaxis: {
            title: "output tokens/s for one user (1 / TPOT)",
            type: "log",
            range: [Math.log10(left), Math.log10(right)],
            ...halfDecades(left, right, (v) => digits(v)),
          },
          yaxis: { title: "output tokens/s per GPU", rangemode: "tozero" },
          hovermode: "closest",
          shapes:
            least && least < right
              ? [
                  {
                    type: "rect",
                    x0: least,
                    x1: right,
                    yref: "paper",
                    y0: 0,
                    y1: 1,
                    fillcolor: tint(p.green, 0.12),
                    line: { width: 0 },
                    layer: "below",
                  },
                ]
              : [],
          annotations:
            least && least < right
              ? [
                  {
                    x: Math.log10(least),
                    yref: "paper",
                    y: 1,
                    text: ` TPOT ≤ ${goodput.tpot} ms` + (goodput.ttft ? `; blue: TTFT ≤ ${goodput.ttft} ms, too` : ""),
                    showarrow: false,
                    xanchor: "left",
                    yanchor: "top",
                    font: { color: p.green, size: 11.5 },
                  },
                ]
              : [],
        },
        [
          ...front.map((f) => ({ kind: "front", ...f })),
          ...plans.map((c) => ({
            kind: c.verdict,
            plan: label(c),
            gpu: c.gpu,
            mode: c.mode,
            ...(c.simulated ?? c.priced),
          })),
        ],
        { note: "click a point to make it the plan on the left" },
      );
    }

    function draw() {
      one.element.hidden = !answer?.front?.length;
      if (!answer) return;
      const { winner, counts, seconds } = answer;
      show(
        said,
        winner
          ? [h("p", { class: "first" }, `${label(winner)} on ${winner.gpu}`), answer.why.map((w) => h("p", {}, w))]
          : [
              h("p", { class: "problem" }, answer.reason),
              answer.relaxations.map((r) => h("p", {}, `${r.change} → ${r.plan}`)),
            ],
        h(
          "p",
          { class: "note" },
          `${digits((counts.plans_aggregated ?? 0) + (counts.plans_disaggregated ?? 0), 6)} plans, ` +
            `${digits(counts.points ?? 0, 7)} loads estimated, ${counts.simulations ?? 0} simulations ` +
            `in ${digits(Object.values(seconds).reduce((a, b) => a + b, 0))} s`,
        ),
        answer.warnings.map((w) => h("p", { class: "warning" }, w)),
      );
      if (answer.front.length) pareto();
      const share = `p${Math.round(answer.goodput_share * 100)}`;
      const rows = answer.plans.map((c) => {
        const f = c.simulated ?? c.priced;
        return {
          best: c.verdict === "wins",
          pick: () => setPlan(planArgs(c)),
          cells: [
            label(c),
            c.gpu,
            digits(f.request_rate),
            digits(f.output_throughput_per_gpu),
            digits(f.output_throughput_per_user),
            milliseconds(c.trial?.ttft_ms?.share),
            milliseconds(c.trial?.tpot_ms?.share),
            f.cost_per_million_output_tokens === null ? "–" : `$${digits(f.cost_per_million_output_tokens)}`,
            c.verdict,
          ],
        };
      });
      show(
        below,
        rows.length &&
          table(
            "Plans that were simulated (choose a row to make it the plan)",
            [
              "plan",
              "GPU",
              "req/s",
              "tok/s per GPU",
              "tok/s per user",
              `TTFT ${share}`,
              `TPOT ${share}`,
              "$ per M",
              "",
            ],
            rows,
          ),
        answer.rejected.length > 0 &&
          table(
            "Looked good, but",
            ["plan", "GPU", "why not"],
            answer.rejected.slice(0, 6).map((c) => ({ cells: [label(c), c.gpu, c.reason] })),
          ),
        Object.keys(answer.commands).length > 0 &&
          h(
            "div",
            { class: "commands" },
            h("h3", {}, "How to start it"),
            Object.entries(answer.commands).map(([key, lines]) => [
              h(
                "div",
                { class: "bar-of-view" },
                h("b", {}, ENGINES[key] ?? key),
                h("button", { type: "button", onclick: () => copy(lines.join("\n"), "command") }, "Copy"),
              ),
              h("pre", { tabindex: "0" }, lines.join("\n")),
            ]),
          ),
        answer.margin?.runner_up > 0 &&
          h("p", { class: "note" }, `${percent(answer.margin.runner_up)} ahead of the next plan.`),
      );
    }
    return {
      draw() {
        ask.refresh();
        draw();
      },
    };
  },
};
