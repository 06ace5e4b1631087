// Shows the frame of the sliders' position. All it needs was sent beforehand, so a move needs no answer from the kernel
// and reaches the screen with the browser's next paint, however busy the kernel is. A choice does need the kernel: until
// its frames are there, the chart is dimmed and the line says what is going on.
const NARROW = 480; // pixels: below this width, a page is narrow
const WIDE = 576; // points: a picture's width
const LETTERS = [12, 8]; // pixels of a picture's text on a narrow page: those wanted, and the fewest where it is crowded
const EXPONENT = 8; // points: smaller text is raised, and stays smaller
const LARGEST = 1.35; // pixels of a part's point: its text has then as many as it needs
const PATIENCE = 4000; // ms between two looks at a kernel that is to answer
const REST = 300; // ms without a move, after which the kernel hears where a slider is
const SILENT = "The kernel does not answer: the chart is as it was. To bring it back to life, run this cell again.";

function isBusy(el) {
  const panels = [...(globalThis.jupyterapp?.shell.widgets("main") ?? [])];
  return panels.find((panel) => panel.node.contains(el))?.sessionContext?.session?.kernel?.status === "busy";
}

// A move needs no kernel, and JupyterLab draws its kernel's status twice for each message: frames that the next move
// would wait for. So the kernel hears of a slider when it rests, or when the reader goes on to something else.
async function tellAtRest(manager, id) {
  const slider = await manager.get_model(id);
  if (slider.tellNow) return slider.tellNow; // another view of the same figure
  const save = slider.save_changes.bind(slider);
  let due = null;
  slider.tellNow = () => {
    if (due === null) return;
    clearTimeout(due.timer);
    const { callbacks } = due;
    due = null;
    save(callbacks);
  };
  slider.save_changes = (callbacks) => {
    clearTimeout(due?.timer);
    due = { callbacks, timer: setTimeout(slider.tellNow, REST) };
  };
  return slider.tellNow;
}

function render({ model, el }) {
  const add = (parent, attributes) => {
    const node = parent.appendChild(document.createElement("div"));
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  el.classList.add("fusion-explorer");
  const heading = add(el, { class: "fusion-heading", "aria-hidden": "true" }); // of a narrow picture, whose label says it
  const chart = add(el, { class: "fusion-chart", role: "img" });
  const still = add(chart, {});
  const moving = add(chart, { class: "fusion-moving" });
  const said = add(chart, {});
  const below = add(el, { class: "fusion-below", "aria-hidden": "true" });
  const line = add(el, { role: "status", "aria-live": "polite" });
  const table = add(el, { class: "fusion-numbers" });

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
  // On a narrow page a picture's letters grow, its parts stand below each other, and its title and long lines fold in
  // text of the page's own.
  let narrow = false;
  let rows = []; // of the windows through which the parts are seen: x, y, width, height
  let told = []; // texts that are too long for it
  const letters = []; // of each part, where it has smaller ones
  let reached = null; // by the frames so far, where a picture has no parts: left, top, right, bottom
  const put = (layer, svg) => {
    layer.innerHTML = narrow && rows.length
      ? rows.map((row) => `<div class="fusion-row">${svg.repeat(row.length)}</div>`).join("")
      : svg;
  };
  // An axis' name along it: its letters would grow into the axis' numbers.
  const isUpright = (text) => text.getAttribute("transform")?.startsWith("rotate(-90");
  // All is read before anything is written, and once more after: the browser lays out twice, however many texts.
  const grow = (layers, scales, longest) => {
    const drawings = layers.flatMap((layer) => layer.map((drawing, number) => [drawing, number, scales[number] ?? chart.clientWidth / WIDE]));
    const grown = (size, scale, wanted) => (size < EXPONENT ? size * Math.max(1, wanted / 9 / scale) : Math.max(size, wanted / scale));
    const found = drawings.flatMap(([drawing, number, scale]) =>
      [...drawing.querySelectorAll("text:not(.fusion-grown, .fusion-title)")].map((text) => (
        { text, number, size: grown((text.points ??= parseFloat(getComputedStyle(text).fontSize)), scale, letters[number] ?? LETTERS[0]) })));
    for (const { text, size } of found) {
      text.style.fontSize = `${size}px`;
      text.classList.add("fusion-grown");
    }
    const long = found.filter(({ text }) => isUpright(text) || text.getBBox().width >= longest);
    for (const { text } of long) text.classList.add("fusion-long");
    for (const { text, number } of long) if (number === 0) told.push(text);
    for (const drawing of new Set(found.map(({ text }) => text.ownerSVGElement))) if (still.contains(drawing)) lower(drawing);
  };
  // An axis' name below its numbers, whose letters have grown into it.
  const lower = (drawing) => {
    const texts = [...drawing.querySelectorAll(".fusion-grown:not(.fusion-long)")];
    const boxes = texts.map((text) => text.getBoundingClientRect());
    const lowest = Math.max(...boxes.map(({ bottom }) => bottom));
    const scale = drawing.getScreenCTM()?.d || 1;
    texts.forEach((text, number) => {
      const own = boxes[number];
      if (own.bottom < lowest - 2) return;
      const over = boxes.filter((each) => each.top < own.top - 2 && each.left < own.right && own.left < each.right);
      const shift = Math.max(0, ...over.map(({ bottom }) => bottom - own.top));
      if (shift && shift < own.height) text.style.translate = `0 ${shift / scale}px`;
    });
  };
  // Labels that were placed for smaller letters: each goes below those before it; what is still gives way to them.
  const part = () => {
    const boxOf = (text) => text.getBoundingClientRect();
    const crosses = (one, other) =>
      one.left < other.right && other.left < one.right && one.top < other.bottom - 1 && other.top < one.bottom - 1;
    const placed = [];
    for (const text of moving.querySelectorAll(".fusion-labels text")) {
      const scale = text.getScreenCTM()?.d || 1;
      let shift = 0;
      for (let tries = 0; tries < 8; tries++) {
        const own = boxOf(text);
        const over = placed.filter((each) => crosses(own, each));
        if (!over.length) break;
        shift += Math.max(...over.map(({ bottom }) => bottom - own.top - 1));
        text.style.translate = `0 ${shift / scale}px`;
      }
      placed.push(boxOf(text));
    }
    if (!placed.length) return;
    const names = [...still.querySelectorAll(".fusion-grown:not(.fusion-long)")];
    const hidden = names.map((name) => placed.some((each) => crosses(boxOf(name), each)));
    names.forEach((name, number) => (name.style.visibility = hidden[number] ? "hidden" : ""));
  };
  const frameAll = (drawings) => {
    for (const { x, y, width, height } of drawings.map((each) => each.getBBox())) {
      if (!width) continue;
      const [left, top, right, bottom] = reached ?? [x, y, x, y];
      reached = [Math.min(left, x), Math.min(top, y), Math.max(right, x + width), Math.max(bottom, y + height)];
    }
    if (!reached) return;
    const [left, top, right, bottom] = reached;
    const box = [left - 1, top - 1, right - left + 2, bottom - top + 2].join(" ");
    for (const each of drawings) each.setAttribute("viewBox", box);
  };
  // Whether texts of a part cross, or reach beyond it: then its letters are smaller from now on.
  const isCrowded = (drawings) => {
    const frame = drawings[0]?.getBoundingClientRect();
    const texts = drawings.flatMap((each) => [...each.querySelectorAll(".fusion-grown:not(.fusion-long)")])
      .filter((text) => text.style.visibility !== "hidden" && !isUpright(text) && text.textContent.trim());
    const boxes = texts.map((text) => text.getBoundingClientRect());
    const seen = boxes.map((box) => box.width && box.right > frame.left + 1 && box.left < frame.right - 1 &&
      box.bottom > frame.top + 1 && box.top < frame.bottom - 1);
    return boxes.some((one, number) => seen[number] && (one.left < frame.left - 1 || one.right > frame.right + 1 ||
      boxes.slice(number + 1).some((other, after) => seen[number + 1 + after] &&
        texts[number].textContent !== texts[number + 1 + after].textContent &&
        Math.min(one.right, other.right) - Math.max(one.left, other.left) > 2 &&
        Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 3)));
  };
  const shrink = (drawings, number) => {
    if ((letters[number] ?? LETTERS[0]) <= LETTERS[1] || !isCrowded(drawings)) return false;
    letters[number] = (letters[number] ?? LETTERS[0]) - 1;
    ungrow(drawings);
    return true;
  };
  const ungrow = (drawings) => {
    for (const text of drawings.flatMap((each) => [...each.querySelectorAll(".fusion-grown:not(.fusion-long)")])) {
      text.classList.remove("fusion-grown");
      text.style.translate = "";
    }
  };
  // What grows may reach further, and then all of it is drawn smaller: once more.
  const growWhole = (layers, longest) => {
    const scale = () => chart.clientWidth / (reached ? reached[2] - reached[0] + 2 : WIDE);
    for (let pass = 0; pass < 12; pass++) {
      const before = scale();
      grow(layers, layers.flat().map(() => before), longest);
      part();
      frameAll(layers.flat());
      if (scale() < 0.99 * before && pass < 4) ungrow(layers.flat());
      else if (!shrink(layers.flat(), 0)) return;
      else reached = null;
    }
  };
  const fit = () => {
    heading.replaceChildren();
    below.replaceChildren();
    if (!narrow) return;
    const layers = [still, moving, said].map((layer) => [...layer.querySelectorAll("svg")]);
    const windows = rows.flat();
    const longest = windows.length ? 0.97 * Math.max(...windows.map(([, , width]) => width)) : 0.7 * WIDE;
    const write = (place, line, tag) => (place.appendChild(document.createElement(tag)).textContent = line);
    const title = moving.querySelector(".fusion-title");
    if (title) write(heading, title.textContent, "b");
    const wide = chart.clientWidth / LARGEST;
    const together = windows.map((each) => rows.find((row) => row.includes(each)).reduce((sum, [, , width]) => sum + width, 0));
    const growParts = () => grow(layers, together.map((width) => chart.clientWidth / Math.max(width, wide)), longest);
    if (windows.length) growParts();
    else growWhole(layers, longest);
    for (const drawings of layers) {
      drawings.forEach((drawing, number) => {
        const found = windows[number];
        if (!found) return;
        drawing.setAttribute("viewBox", found.join(" "));
        drawing.style.width = `${(100 * found[2]) / Math.max(together[number], wide)}%`;
      });
    }
    const ofPart = (number) => layers.map((drawings) => drawings[number]).filter(Boolean);
    for (let pass = 0; pass < 4 && windows.length; pass++) {
      if (!windows.map((_, number) => shrink(ofPart(number), number)).includes(true)) break;
      growParts();
    }
    told = told.filter((line) => line.isConnected);
    const upright = [...new Set(told.filter(isUpright).reverse().map((text) => text.textContent.trim()))];
    if (upright.length) write(heading, `↑ ${upright.join(", ")}`, "div");
    for (const line of told.filter((text) => !isUpright(text))) {
      write(Number(line.getAttribute("y")) < 60 ? heading : below, line.textContent.trim(), "div");
    }
  };
  let text = "";
  let tabled = ""; // its markup
  let quiet = false; // whether the picture says all of it: then the line is for those who hear the page
  let doing = "";
  const write = () => {
    const shown = moving.querySelector(".fusion-title")?.textContent;
    const at = shown && !doing ? text.indexOf(shown) : -1;
    if (at < 0) {
      line.textContent = doing || text;
    } else { // its title says it
      const heard = document.createElement("span");
      const end = at + shown.length;
      const rest = text.slice(end).replace(/^[.,;:]?( |$)/, "");
      const before = rest ? text.slice(0, at) : text.slice(0, at).replace(/[:,;] $/, ".");
      heard.className = "fusion-heard";
      heard.textContent = text.slice(at, text.length - rest.length);
      line.replaceChildren(before, heard, rest.charAt(0).toUpperCase() + rest.slice(1));
    }
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
  const POSITIONS = ["first", "second", "third"];
  const positions = POSITIONS.map((name) => model.get(name));
  const show = () => {
    const frame = frameOf(model.get("data"), positions);
    put(moving, frame.svg);
    fit();
    text = `${frame.text} ${model.get("said").text}`.trim();
    quiet = Boolean(frame.quiet) && !model.get("said").text;
    chart.setAttribute("aria-label", text);
    write();
    if (tabled !== frame.table) table.innerHTML = tabled = frame.table;
  };
  const redraw = () => {
    work("");
    reached = null;
    still.innerHTML = model.get("still");
    const parts = still.querySelector("svg")?.dataset.parts ?? "";
    rows = parts.split(";").filter(Boolean).map((row) => row.split(",").map((each) => each.split(" ").map(Number)));
    if (narrow) put(still, model.get("still"));
    tell();
  };
  const tell = () => {
    put(said, model.get("said").svg);
    show();
    // However low the window, the smallest text has 11 pixels.
    const sizes = [...chart.querySelectorAll("text")]
      .map((text) => parseFloat(getComputedStyle(text).fontSize))
      .filter((size) => size >= 8); // an exponent is smaller
    const drawing = still.querySelector("svg");
    const height = drawing ? (drawing.viewBox.baseVal.height * 11) / Math.min(...sizes) : 0;
    chart.style.setProperty("--readable", `${height}px`);
  };
  const move = (number, position) => {
    if (positions[number] === position) return;
    positions[number] = position;
    show();
  };
  POSITIONS.forEach((name, number) => model.on(`change:${name}`, () => move(number, model.get(name))));
  model.on("change:data", redraw);
  model.on("change:said", tell);
  model.on("change:doing", () => work(model.get("doing")));
  const isNarrow = () => {
    narrow = chart.clientWidth > 0 && chart.clientWidth < NARROW;
    el.classList.toggle("fusion-narrow", narrow);
    // Its table may be wider than the page, and then the keyboard scrolls it.
    if (narrow) table.tabIndex = 0;
    else table.removeAttribute("tabindex");
  };
  isNarrow();
  redraw();
  const resized = new ResizeObserver(() => {
    const before = narrow;
    isNarrow();
    if (narrow !== before) redraw();
  });
  resized.observe(chart);
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
      // Heard at the slider itself. Were its position a trait here too, each move would be two messages to the kernel,
      // and JupyterLab draws its status anew as each begins and ends.
      [...controls.querySelectorAll(".noUi-target")].forEach(({ noUiSlider }, number) =>
        noUiSlider.on("update", ([position]) => move(number, Math.round(position))));
      for (const id of model.get("sliders") ?? []) {
        tellAtRest(model.widget_manager, id).then((tellNow) => controls.addEventListener("focusout", tellNow));
      }
    } else if (tries) setTimeout(() => whenThere(tries - 1), 200);
  };
  setTimeout(() => whenThere(50));
  return () => {
    clearTimeout(waits);
    resized.disconnect();
    document.removeEventListener("change", choose, true);
  };
}
export default { render };
