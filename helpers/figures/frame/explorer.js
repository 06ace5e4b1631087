// Shows the frame of the sliders' position. All it needs was sent beforehand, so a move needs no answer from the kernel
// and reaches the screen with the browser's next paint, however busy the kernel is. A choice does need the kernel: until
// its frames are there, the chart is dimmed and the line says what is going on.
const PATIENCE = 4000; // ms between two looks at a kernel that is to answer
const SILENT = "The kernel does not answer: the chart is as it was. To bring it back to life, run this cell again.";

function isBusy(el) {
  const panels = [...(globalThis.jupyterapp?.shell.widgets("main") ?? [])];
  return panels.find((panel) => panel.node.contains(el))?.sessionContext?.session?.kernel?.status === "busy";
}

function render({ model, el }) {
  const add = (parent, attributes) => {
    const node = parent.appendChild(document.createElement("div"));
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  el.classList.add("fusion-explorer");
  const chart = add(el, { class: "fusion-chart", role: "img" });
  const still = add(chart, {});
  const moving = add(chart, { class: "fusion-moving" });
  const said = add(chart, {});
  const line = add(el, { role: "status", "aria-live": "polite" });
  const table = add(el, {});

  const nameSliders = () => {
    // ipywidgets' sliders have a visible name and value that a screen reader cannot connect with them.
    for (const slider of el.closest(".fusion-controls")?.querySelectorAll(".widget-slider") ?? []) {
      const handle = slider.querySelector(".noUi-handle");
      const value = slider.querySelector(".widget-readout");
      if (!handle || !value) continue;
      const speak = () => handle.setAttribute("aria-valuetext", value.textContent);
      handle.setAttribute("aria-label", slider.querySelector("label").textContent);
      // noUiSlider writes the index there at each move, before ipywidgets writes the readout.
      new MutationObserver(speak).observe(value, { childList: true, characterData: true, subtree: true });
      speak();
    }
  };
  let text = "";
  let tabled = ""; // its markup
  let quiet = false; // whether the picture says all of it: then the line is for those who hear the page
  let doing = "";
  const write = () => {
    line.textContent = doing || text;
    line.classList.toggle("fusion-heard", quiet && !doing);
  };
  let waits = null;
  const wait = () => (waits = setTimeout(() => (isBusy(el) ? wait() : work(SILENT)), PATIENCE));
  const work = (what) => {
    doing = what;
    clearTimeout(waits);
    const busy = doing !== "" && doing !== SILENT;
    if (busy) wait();
    chart.setAttribute("aria-busy", String(busy));
    write();
  };
  const show = () => {
    const frame = frameOf(model.get("data"), ["first", "second", "third"].map((slider) => model.get(slider)));
    moving.innerHTML = frame.svg;
    text = `${frame.text} ${model.get("said").text}`.trim();
    quiet = Boolean(frame.quiet) && !model.get("said").text;
    chart.setAttribute("aria-label", text);
    write();
    if (tabled !== frame.table) table.innerHTML = tabled = frame.table;
  };
  const redraw = () => {
    work("");
    still.innerHTML = model.get("still");
    tell();
  };
  const tell = () => {
    said.innerHTML = model.get("said").svg;
    show();
    // However low the window, the smallest text has 11 pixels.
    const sizes = [...chart.querySelectorAll("text")]
      .map((text) => parseFloat(getComputedStyle(text).fontSize))
      .filter((size) => size >= 8); // an exponent is smaller
    const drawing = still.querySelector("svg");
    const height = drawing ? (drawing.viewBox.baseVal.height * 11) / Math.min(...sizes) : 0;
    chart.style.setProperty("--readable", `${height}px`);
  };
  model.on("change:first change:second change:third", show);
  model.on("change:data", redraw);
  model.on("change:said", tell);
  model.on("change:doing", () => work(model.get("doing")));
  redraw();
  // Caught on its way down: what the choice does may be done before the event is back up.
  const choose = ({ target }) => {
    const chosen = target.matches("select, input[type=checkbox]") && target.closest(".fusion-controls");
    if (chosen && chosen === el.closest(".fusion-controls")) work("computing ...");
  };
  document.addEventListener("change", choose, true);
  const keep = (event) => {
    // JupyterLab would take a list's arrows, and go to another cell.
    if (event.target.matches("select") && event.key.startsWith("Arrow")) event.stopPropagation();
  };
  const whenThere = (tries) => {
    // The view stands in the page only later, and the sliders' own parts after it.
    const controls = el.closest(".fusion-controls");
    if (controls?.querySelector(".noUi-handle")) {
      controls.addEventListener("keydown", keep);
      nameSliders();
    } else if (tries) setTimeout(() => whenThere(tries - 1), 200);
  };
  setTimeout(() => whenThere(50));
  return () => {
    clearTimeout(waits);
    document.removeEventListener("change", choose, true);
  };
}
export default { render };
