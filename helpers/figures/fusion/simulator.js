// A graph whose edges are switches. Every partition that they lead to, with its costs and its refusals, was worked out
// beforehand: a click looks up the next, and only colours, labels and totals change. On a narrow page the totals stand
// below the graph, which has a layout of its own where that has room for its columns.
const TOP = 24; // points of the title, which a narrow page folds
const LABEL = 15; // letters of a box there
function render({ model, el }) {
  const add = (parent, tag, attributes = {}) => {
    const node = parent.appendChild(document.createElement(tag));
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  el.classList.add("fusion-explorer", "fusion-simulator");
  const buttons = add(el, "div", { class: "fusion-buttons" });
  const heading = add(el, "div", { class: "fusion-heading", "aria-hidden": "true" });
  const chart = add(el, "div", { role: "group", "aria-label": "graph: each edge is a switch that fuses it" });
  const below = add(el, "div", { "aria-hidden": "true" });
  const line = add(el, "div", { role: "status", "aria-live": "polite" });
  const table = add(el, "div", { class: "fusion-numbers" });
  const name = `fusion-totals-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
  let boxes, edges, totals;
  let narrow = false;
  let size = null; // of the picture: width, height
  const fit = () => {
    const [width, height] = size;
    const { split, width: whole = width, narrow: own } = model.get("data");
    heading.replaceChildren();
    below.replaceChildren();
    const seen = narrow ? [0, TOP, own ? width : split, height - TOP] : [0, 0, width, height];
    chart.querySelector("svg").setAttribute("viewBox", seen.join(" "));
    if (!narrow) return;
    add(heading, "b").textContent = totals.querySelector(".fusion-title").textContent;
    const { y, height: deep } = totals.getBBox();
    const box = `${split} ${y - 2} ${whole - split} ${deep + 4}`;
    const letters = chart.querySelector("svg").getAttribute("font-size");
    below.innerHTML = `<svg viewBox="${box}" fill="currentColor" font-size="${letters}" width="85%"><use href="#${name}"/></svg>`;
  };

  const go = (number) => {
    if (number === model.get("first")) return show();
    model.set("first", number);
    model.save_changes();
  };
  const toggle = (index) => {
    const next = model.get("data").partitions[model.get("first")].moves[index];
    if (typeof next === "number") return go(next);
    show(`Refused: ${next}. `);
    edges[index].classList.add("fusion-refused");
  };
  for (const [name, where] of [["unfused (Home)", "apart"], ["as the analyser would (End)", "best"]]) {
    const button = add(buttons, "button", { type: "button" });
    button.textContent = name;
    button.addEventListener("click", () => go(model.get("data")[where]));
  }
  chart.addEventListener("click", (event) => {
    const edge = event.target.closest(".fusion-edge");
    if (edge) {
      edge.focus();
      toggle(edges.indexOf(edge));
    }
  });
  chart.addEventListener("keydown", (event) => {
    const index = edges.indexOf(event.target.closest(".fusion-edge"));
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter" || event.key === " ") toggle(index);
    else if (event.key === "Home" || event.key === "End") go(model.get("data")[event.key === "Home" ? "apart" : "best"]);
    else if (step) edges.at((index + step) % edges.length).focus();
    else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has keys of its own
  });

  const show = (refused = "") => {
    const data = model.get("data");
    const now = data.partitions[model.get("first")];
    boxes.forEach((box, index) => {
      const [frame, label] = box.children;
      frame.setAttribute("fill", now.colours[index]);
      frame.setAttribute("stroke", now.colours[index]);
      const name = now.labels[index];
      label.textContent = narrow && name.length > LABEL ? `${name.slice(0, LABEL - 1)}…` : name;
    });
    edges.forEach((edge, index) => {
      edge.setAttribute("aria-checked", now.joined[index]);
      edge.classList.remove("fusion-refused");
      edge.children[2].textContent = narrow && now.joined[index] ? "fused" : now.said[index];
    });
    totals.innerHTML = now.bars;
    fit();
    line.textContent = refused + now.text;
    table.innerHTML = now.table;
  };
  const redraw = () => {
    const data = model.get("data");
    chart.innerHTML = `${(narrow && data.narrow) || data.graph}<g class="fusion-moving" id="${name}"></g></svg>`;
    const { width, height } = chart.querySelector("svg").viewBox.baseVal;
    size = [width, height];
    boxes = [...chart.querySelectorAll(".fusion-box")];
    edges = [...chart.querySelectorAll(".fusion-edge")];
    totals = chart.querySelector(".fusion-moving");
    show();
  };
  model.on("change:first", () => show());
  model.on("change:data", redraw);
  return followWidth({ el, chart, table }, (now) => {
    narrow = now;
    redraw();
  });
}
export default { render };
