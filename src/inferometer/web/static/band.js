// The expected error of a figure, small beside its name: four in five measured runs of its class were within it.
import { h } from "./dom.js";
import { percent } from "./format.js";

const share = (error) => (error < 1 ? `±${percent(error, error < 0.1 ? 1 : 0)}` : `×${(1 + error).toFixed(1)}`);

// band(report.expected_error.ttft): "±4.1%", and in the tooltip which runs that is of; nothing where there are none
export function band(error) {
  if (!error) return null;
  const quantiles = `${share(error.p50)} (p50), ${share(error.p80)} (p80), ${share(error.p90)} (p90)`;
  const runs = `on ${error.rows} measured runs of ${error.models} models: ${error.class}`;
  const title = [`Expected error ${quantiles} ${runs}`, error.note].filter(Boolean).join("; ");
  return h("span", { class: "band", title }, share(error.p80));
}
