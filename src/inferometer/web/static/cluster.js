// Tab: the machine of the plan: what sits on each GPU, and what travels over each link in a phase.
import { given, latest, post } from "./api.js";
import { drawing } from "./chart.js";
import { detailOf, showDetail } from "./detail.js";
import { h, show } from "./dom.js";
import { bytes, capital, percent, seconds, si } from "./format.js";
import { machine } from "./machine.js";
import { phaseOf, phaseSwitch } from "./phases.js";
import { domainsOf, domainWord, linkName, opName, PARTS, rankLine, span, traffic } from "./placement.js";
import { withModel } from "./request.js";
import { setView, state } from "./state.js";
import { palette } from "./theme.js";
import { bars } from "./flows.js";

const rankRows = (cluster) =>
  cluster.ranks.map((rank) => {
    const stage = cluster.stages[rank.stage];
    const held = PARTS.map(([key]) => [`${key}_bytes`, stage.memory[`${key}_bytes`]]);
    const own = { heads: span(rank.heads), kv_heads: span(rank.kv_heads), experts: span(rank.experts) };
    return { ...rank, layers: span(stage.layers), ...own, ...Object.fromEntries(held) };
  });

const flowRows = (cluster, phase) =>
  cluster.stages.flatMap((stage) =>
    cluster.links.flatMap((link) =>
      traffic(stage, link.name, phase).flows.map((flow) => ({
        phase,
        stage: stage.stage,
        link: link.name,
        operator: opName(flow),
        axis: flow.axis,
        ranks: flow.ranks,
        calls: flow.count,
        bytes: flow.bytes,
        seconds: flow.seconds,
        share: flow.share,
        bandwidth: flow.sent / flow.seconds,
        peak_bandwidth: flow.peak_bandwidth,
      })),
    ),
  );

function title(cluster) {
  const sizes = Object.entries(cluster.parallel)
    .filter(([, size]) => size > 1)
    .map(([axis, size]) => `${axis} ${size}`);
  const all = cluster.nodes * cluster.gpus_per_node;
  const idle =
    all > cluster.num_gpus
      ? [`${(all - cluster.num_gpus).toLocaleString("en")} unused on the node${cluster.nodes > 1 ? "s" : ""}`]
      : [];
  return [`${cluster.num_gpus.toLocaleString("en")} × ${cluster.label}`, ...sizes, ...idle].join(" · ");
}

// One stop for Tab; arrows go on from there.
function walkable(box) {
  const parts = () => [...box.querySelectorAll(".part")];
  box.addEventListener("keydown", (event) => {
    const all = parts();
    const now = all.indexOf(event.target.closest(".part"));
    const next = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1 }[event.key];
    const jump = { Home: 0, End: all.length - 1 }[event.key] ?? next;
    if (event.key === "Enter" || event.key === " ") all[now]?.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    else if (jump === undefined || now < 0) return;
    else {
      all.forEach((part) => part.setAttribute("tabindex", "-1"));
      all[(jump + all.length) % all.length].setAttribute("tabindex", "0");
      all[(jump + all.length) % all.length].focus();
    }
    event.preventDefault();
  });
  return (focused) => {
    const all = parts();
    const known = all.find((part) => keyOf(part) === focused);
    (known ?? all[0])?.setAttribute("tabindex", "0");
    if (known) known.focus({ preventScroll: true });
  };
}

const keyOf = (part) => part && (part.dataset.pick ?? `zoom:${part.dataset.zoom}`);

// What is under the pointer or the focus, told beside it.
function telling(box, tell) {
  const tip = h("div", { class: "hover-card", hidden: true, "aria-hidden": "true" });
  const hide = () => (tip.hidden = true);
  const over = (event) => {
    const part = event.target.closest("[data-pick], [data-tip]");
    const lines = part && tell(part.dataset.pick ?? part.dataset.tip);
    if (!lines?.length) return hide();
    show(
      tip,
      h("b", {}, lines[0]),
      lines.slice(1).map((line) => h("span", {}, line)),
    );
    if (!tip.isConnected) box.parentElement.append(tip);
    const [frame, at] = [box.parentElement.getBoundingClientRect(), part.getBoundingClientRect()];
    tip.hidden = false;
    const left = Math.min(Math.max(4, at.left - frame.left), frame.width - tip.offsetWidth - 4);
    const below = at.bottom - frame.top + 6;
    const fits = at.bottom + tip.offsetHeight + 12 < innerHeight;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${fits ? below : at.top - frame.top - tip.offsetHeight - 6}px`;
  };
  box.addEventListener("pointerover", over);
  box.addEventListener("focusin", over);
  box.addEventListener("pointerleave", hide);
  box.addEventListener("focusout", hide);
  return hide;
}

function legend(host, hint) {
  const p = palette();
  const entry = (color, word) => h("li", {}, h("i", { style: `background:${color}` }), word);
  show(
    host,
    PARTS.map(([, word, color]) => entry(p[color], word)),
    entry(p.grid, "free"),
    entry(p.green, "link in use: darker means longer"),
    h("li", {}, hint),
  );
}

export const clusterView = {
  id: "cluster",
  label: "Cluster",
  mount(host) {
    const bar = h("div", { class: "bar-of-view" });
    const redrawSwitch = phaseSwitch(bar);
    const keys = h("ul", { class: "legend" });
    const way = h("nav", { class: "blocks", "aria-label": "Which part of the cluster" });
    const wrong = h("p", { class: "problem", role: "alert", hidden: true });
    const left = h("div", { class: "left" });
    const side = h("aside", { class: "operator", "aria-label": "Details", hidden: true });
    bar.append(keys);
    host.append(bar, wrong, way, h("div", { class: "split" }, left, side));
    let [data, before, seen] = [null, null, ""];
    const command = () => data?.command ?? "";
    const rows = () => (data ? rankRows(data) : []);
    const picture = drawing(left, { name: "cluster", title: "", rows, command });
    const second = drawing(left, {
      name: "links",
      title: "What travels",
      rows: () => (data?.stages.length ? flowRows(data, phaseOf()) : []),
      command,
    });
    const focusOn = walkable(picture.box);
    const domains = () => domainsOf(data);
    const linkLines = (pick) => {
      const detail = detailOf(data, null, pick, domains(), phaseOf());
      const [, name, number] = pick.split(":");
      const stages = name === "network" ? data.stages : domains()[Number(number)].stages.map((one) => data.stages[one]);
      const loads = stages.map((stage) => traffic(stage, name, phaseOf())).filter((load) => load.flows.length);
      return [
        `${detail.title} · ${si(data.links.find((link) => link.name === name).bandwidth, "B/s")} a GPU`,
        ...loads
          .slice(0, 4)
          .flatMap((load) =>
            load.flows.map(
              (flow) =>
                `${data.stages.length > 1 ? `stage ${load.stage}: ` : ""}${opName(flow)} ${bytes(flow.bytes)} a GPU, ` +
                `${seconds(flow.seconds)}, ${percent(flow.share)}`,
            ),
          ),
        loads.length ? "" : `idle in the ${phaseOf()}`,
      ].filter(Boolean);
    };
    const hideTip = telling(picture.box, (pick) =>
      pick.startsWith("gpu:") ? rankLine(data, data.ranks[Number(pick.slice(4))], phaseOf()) : linkLines(pick),
    );
    const close = () => {
      const was = state.view.cluster_pick;
      setView({ cluster_pick: null });
      focusOn(was);
    };
    for (const place of [side, picture.box])
      place.addEventListener("keydown", (event) => event.key === "Escape" && !side.hidden && close());
    picture.box.addEventListener("click", (event) => {
      const part = event.target.closest(".part");
      if (!part) return;
      hideTip();
      if (part.dataset.zoom !== undefined) return setView({ cluster_node: part.dataset.zoom, cluster_pick: null });
      setView({ cluster_pick: part.dataset.pick === state.view.cluster_pick ? null : part.dataset.pick });
    });

    // Which domains are drawn: all, or the one that was looked at closer, with the way back.
    function zoomed() {
      const all = domains();
      const one = all.length > 1 ? all[Number(state.view.cluster_node ?? -1)] : undefined;
      const go = (node, text, help) =>
        h("button", { type: "button", title: help, onclick: () => setView({ cluster_node: node }) }, text);
      const word = domainWord(data);
      show(
        way,
        one && [
          go(null, `← all ${all.length} ${word}s`, "back to the whole cluster"),
          one.index > 0 && go(String(one.index - 1), `‹ ${word} ${one.index - 1}`, "previous"),
          one.index < all.length - 1 && go(String(one.index + 1), `${word} ${one.index + 1} ›`, "the next one"),
        ],
      );
      way.hidden = !one;
      return one ? [one] : all;
    }

    function openSide(open) {
      side.hidden = !open;
      side.toggleAttribute("open", open); // as the panel of an operator, whose place it has
    }

    function paint() {
      if (!data) return;
      const nothing = !data.stages.length;
      wrong.hidden = !nothing;
      left.hidden = nothing;
      if (nothing) {
        openSide(false);
        way.hidden = true;
        return show(wrong, h("b", {}, "This layout is not possible:  "), data.reason);
      }
      const phase = data.phases[phaseOf()] ? phaseOf() : Object.keys(data.phases)[0];
      const chosen = state.view.cluster_pick ?? null;
      const detail = detailOf(data, before?.stages.length ? before : null, chosen, domains(), phase);
      openSide(Boolean(detail));
      if (detail) showDetail(side, detail, close);
      const shown = zoomed();
      const focused = picture.box.contains(document.activeElement) ? keyOf(document.activeElement) : null;
      const wide = Math.max(left.clientWidth - 24, 260);
      const zooms = shown.length > 1;
      const { svg, level, drawn } = machine(data, shown, { wide, phase, chosen, zooms });
      const took = data.phases[phase];
      const more = zooms ? Math.ceil(data.num_gpus / data.gpus_per_domain) - drawn : 0;
      const m = data.stages[0].memory;
      picture.draw(svg, {
        title: title(data),
        note:
          `${capital(phase)} ${seconds(took.seconds)}${took.steps > 1 ? ` in ${took.steps} steps` : ""} · ` +
          `dashed: usable, ${percent(m.usable_bytes / m.capacity_bytes, 0)} of the memory` +
          (more ? ` · ${more.toLocaleString("en")} more ${domainWord(data)}s are not drawn` : ""),
      });
      picture.box.dataset.level = level;
      legend(keys, `click a GPU or a link to pin it${zooms ? `, a ${domainWord(data)} to look closer` : ""}`);
      focusOn(focused);
      const flows = flowRows(data, phase);
      second.box.parentElement.hidden = !flows.length;
      second.draw(bars(flows, { wide, several: data.stages.length > 1, link: linkName }), {
        title: flows.length ? `What a GPU sends during ${phase}` : `No GPU sends anything during ${phase}`,
        note: flows.length
          ? "per operator: time on its link, bytes per GPU, and achieved bandwidth"
          : "",
      });
    }

    const ask = latest(
      (plan, pinned) =>
        Promise.all([post("/api/cluster", withModel(plan)), pinned && post("/api/cluster", withModel(pinned))]),
      ({ value, error }) => {
        host.removeAttribute("aria-busy");
        if (error) {
          wrong.hidden = false;
          return show(wrong, error.message);
        }
        [data, before] = value;
        redrawSwitch();
        paint();
      },
    );
    let width = 0;
    new ResizeObserver(() => {
      const changed = Math.abs(left.clientWidth - width) > 4 && left.clientWidth > 0;
      width = left.clientWidth;
      if (changed && data) paint();
    }).observe(left);
    return {
      draw() {
        redrawSwitch();
        if (given) data = given.cluster ?? null;
        const now = JSON.stringify([state.plan, state.pinned]);
        if (!given && now !== seen) {
          host.setAttribute("aria-busy", "true");
          ask(state.plan, state.pinned);
        }
        seen = now;
        paint();
      },
    };
  },
};
