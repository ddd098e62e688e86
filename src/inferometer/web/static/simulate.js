// Tab: requests through an engine, one by one. Begins with an example; what was run stays in the address, and pinned
// results stand beside new ones.
import { job, Refused, resumed } from "./api.js";
import { h, show } from "./dom.js";
import { progress } from "./form.js";
import { digits } from "./format.js";
import { replayer } from "./replay.js";
import { latencyTable, sentences, sessionTable, tierTable, tiles, titleOf } from "./served.js";
import { simulationCharts } from "./simulation.js";
import { setView, state } from "./state.js";
import { EXAMPLE, trafficForm } from "./traffic.js";

const SETTLED = 500; // ms after a change until the example follows it

const running = (share, text) => (share > 0 ? `running, ${Math.floor(share * 100)}%: ${text}` : text);

// Jobs one at a time: a new one ends the one before it. follow(…) gives its result, or null if it was ended so.
function follower(bar) {
  let current = null;
  return {
    busy: () => current !== null,
    async follow(start, prefix = "") {
      current?.stop();
      const own = start((share, text) => current === own && bar.update(share, prefix + running(share, text)));
      current = own;
      bar.show(own.stop);
      bar.update(0, `${prefix}starting`);
      try {
        return await own.done;
      } catch (error) {
        if (current !== own) return null;
        throw error;
      } finally {
        if (current === own) {
          current = null;
          bar.hide();
        }
      }
    },
  };
}

export const simulateView = {
  id: "simulate",
  label: "Simulate",
  asks: true,
  alone: true,
  folds: true,
  mount(host) {
    let [now, pinned, before, rates] = [null, null, null, null]; // { id, result, key, example }; results
    let [due, lost] = [0, false]; // a timer; whether the address names a result that is not kept any more
    const bar = progress();
    const jobs = follower(bar);
    const ask = trafficForm({ run: () => go(), capacity: () => goRates(), changed: () => draw(follow()) });
    const about = h("div", { class: "about" });
    const summary = h("div", { class: "sentences" });
    const figures = h("div", {});
    const below = h("div", {});
    const replay = replayer((at) => charts.cursor(at));
    host.append(
      h(
        "p",
        { class: "note" },
        "Serves requests with the plan on the left, step by step as the engine would. " +
          "Arrivals decide how many run at once, not the plan's batch size.",
      ),
      ask.element,
      bar.element,
      about,
      summary,
      figures,
    );
    const charts = simulationCharts(host, {
      command: () => now?.result.command ?? "",
      rateCommand: () => rates?.command ?? "",
      replay: replay.element,
      onseek: replay.seek,
      onrate(rate) {
        setView({ sim_request_rate: rate });
        go();
      },
    });
    host.append(below);

    // ---------------------------------------------------------------- runs

    async function attempt(act) {
      clearTimeout(due); // no example ends what was asked for
      ask.refuse();
      try {
        await act();
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        ask.refuse(error.message);
      }
      draw();
    }

    async function serve(body, { example = false, prefix = "" } = {}) {
      const key = ask.key();
      let id = null;
      const result = await jobs.follow((tell) => job("/api/simulate", body, tell, (name) => (id = name)), prefix);
      return result && { id, result, key, example };
    }

    const go = () =>
      attempt(async () => {
        const run = await serve(ask.body());
        if (!run) return;
        [now, before, lost] = [run, null, false];
        setView({ sim_job: run.id, sim_t: null }, true);
        if (!state.pinned || pinned) return;
        draw(); // the same requests with the pinned plan
        before = (await serve(ask.body(state.pinned), { prefix: "pinned plan: " }))?.result ?? null;
      });

    const goRates = () =>
      attempt(async () => {
        const run = await serve(ask.rates());
        if (!run) return;
        rates = run.result;
        setView({ sim_rates: run.id }, true);
      });

    const goExample = () =>
      attempt(async () => {
        now = (await serve(ask.example(), { example: true, prefix: "example: " })) ?? now;
      });

    // ---------------------------------------------------------------- what the address names

    async function restore() {
      const { sim_job: id, sim_pin: pin, sim_rates: other } = state.view;
      await attempt(async () => {
        try {
          if (pin && pin !== pinned?.id) pinned = { id: pin, result: await jobs.follow((tell) => resumed(pin, tell)) };
          if (other && !rates) rates = await jobs.follow((tell) => resumed(other, tell));
          const result = id && (await jobs.follow((tell) => resumed(id, tell)));
          if (result) now = { id, result, key: ask.key(), example: false };
        } catch (error) {
          if (error.status !== 404) throw error;
          lost = true;
        }
      });
      if (!now) goExample();
    }

    // ---------------------------------------------------------------- what is shown

    const button = (text, act, title) => h("button", { type: "button", title, onclick: act }, text);

    function pinRow() {
      if (!now?.result.completed) return null;
      if (!pinned) return button("Pin this simulation", () => pin(now), "Keep it, to compare the next ones with it");
      return h(
        "span",
        { class: "pinned" },
        h("span", { class: "pinword" }, "Pinned"),
        h("span", { class: "word" }, titleOf(pinned.result)),
        button("Unpin", () => pin(null)),
      );
    }

    function pin(run) {
      [pinned, before] = [run, null];
      setView({ sim_pin: run?.id }, true);
      draw();
    }

    function aboutText() {
      if (!now) return null;
      if (now.example) {
        const all = Number.isFinite(ask.wants()) ? digits(ask.wants(), 7) : "of the trace";
        const more = ask.wants() > EXAMPLE ? `; Simulate runs all ${all}` : "; change it above";
        return h("span", { class: "example" }, h("b", {}, "An example: "), exampleText() + more);
      }
      if (now.key !== ask.key() && !jobs.busy())
        return [
          h("span", {}, "The plan or the traffic has changed since this simulation.  "),
          button("Simulate it", go),
        ];
      return null;
    }

    const lostText = () =>
      lost &&
      h(
        "p",
        {},
        "The server no longer keeps this simulation; its settings are in the link.  ",
        button("Run it again", go),
      );

    function exampleText() {
      const { num_prompts: number, request_rate: rate } = now.result;
      return `${digits(number, 7)} requests ${Number.isFinite(rate) && rate ? `at ${digits(rate)}/s` : "at once"}`;
    }

    function draw() {
      const run = now?.result ?? null;
      const other = pinned?.result === run ? null : (pinned?.result ?? before);
      show(about, lostText(), aboutText());
      about.hidden = !about.childElementCount;
      show(summary, run && sentences(run), pinRow());
      show(figures, run?.completed > 0 && tiles(run, other));
      show(below, run?.completed > 0 && [latencyTable(run, other), sessionTable(run), tierTable(run)]);
      charts.draw(run, rates, other);
      replay.draw(run);
    }

    function follow() {
      if (now?.key === ask.key() || jobs.busy()) return;
      if (state.view.sim_job && now?.id === state.view.sim_job) setView({ sim_job: null }, true);
      clearTimeout(due);
      if (now?.example) due = setTimeout(goExample, SETTLED);
    }

    let begun = false;
    return {
      draw() {
        ask.refresh();
        const other = state.view.sim_job && state.view.sim_job !== now?.id; // Back, or a link
        if (!begun || (other && !jobs.busy())) restore();
        else follow();
        begun = true;
        draw();
      },
    };
  },
};
