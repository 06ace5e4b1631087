// Shows the frame of the sliders' position. All it needs was sent beforehand, so a move needs no answer from the kernel
// and reaches the screen with the browser's next paint, however busy the kernel is. A choice does need the kernel: until
// its frames are there, the chart is dimmed and the line says what is going on.
const WIDE = 576; // points: a picture's width
const LETTERS = [12, 8]; // pixels of a picture's text on a narrow page: those wanted, and the fewest where it is crowded
const TALLEST = 2.2; // times its height: a crowded picture on a narrow page
const BAR = 15; // pixels: the fewest of a bar's height there
const WIDEST = 1.8; // times its width: a part's window there
const SENTENCE = 0.55; // of the page's width: a longer text that reaches beyond a part is written beside it
const SETTLING = 9; // passes for a picture to settle, which is drawn smaller as its letters reach further
const PASSES = 120;
const EXPONENT = 8; // points: smaller text is raised, and stays smaller
const RISE = 0.76; // of a letter's size: above its baseline
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
  // The kernel repeats what it was told. If the slider has moved on, that would take it back.
  const set = slider.set_state.bind(slider);
  slider.set_state = ({ index, ...state }) => set(due || index === undefined ? state : { index, ...state });
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
  let own = []; // the same before letters grew
  let told = []; // texts that are too long for it
  let bar = 0; // points: the height of its lowest bars
  let flat = []; // of each row that is as wide as the page though its part is narrower: times its height
  const letters = []; // of each part, where it has smaller ones
  const stretches = []; // of each row's height, where its letters need it
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
    const grown = (size, scale, wanted) => (size < EXPONENT ? size * Math.max(1, wanted / 9 / scale) : Math.max(flat.length ? 0 : size, wanted / scale));
    const found = drawings.flatMap(([drawing, number, scale]) =>
      [...drawing.querySelectorAll("text:not(.fusion-grown, .fusion-title)")].map((text) => (
        { text, number, size: grown((text.points ??= parseFloat(getComputedStyle(text).fontSize)), scale, letters[number] ?? LETTERS[0]) })));
    for (const { text, size } of found) {
      text.style.fontSize = `${size}px`;
      text.classList.add("fusion-grown");
    }
    // Numbers below an axis grow downwards, or they would reach into it.
    const hanging = found.filter(({ text }) => text.closest("[id^=xtick_]"));
    const downs = hanging.map(({ text, size }) => {
      const { a, d } = text.ownerSVGElement.getScreenCTM() ?? { a: 1, d: 1 };
      return Math.max(0, RISE * (size * a / d - text.points));
    });
    hanging.forEach(({ text }, number) => (text.style.translate = downs[number] ? `0 ${downs[number]}px` : ""));
    const isLong = (text) => {
      const { x, width } = text.getBBox();
      return width >= longest && (rows.length > 0 || x < 0 || x + width > WIDE);
    };
    const long = found.filter(({ text }) => isUpright(text) || isLong(text));
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
      if (shift && shift < 2 * own.height) text.style.translate = `0 ${shift / scale}px`;
    });
  };
  // A crowded picture is drawn higher, its letters and round marks as they were.
  const heighten = (drawings, stretch) => {
    if (stretch === 1 && !drawings[0]?.hasAttribute("preserveAspectRatio")) return;
    for (const drawing of drawings) {
      drawing.setAttribute("preserveAspectRatio", "none");
      for (const each of drawing.querySelectorAll("text, circle, [data-mark]")) {
        each.drawn ??= each.getAttribute("transform") ?? "";
        const y = Number(each.dataset.mark ?? each.getAttribute("cy") ?? each.getAttribute("y") ?? 0);
        const back = `translate(0 ${y}) scale(1 ${1 / stretch}) translate(0 ${-y})`;
        each.setAttribute("transform", each.dataset.mark ? `${back} ${each.drawn}` : `${each.drawn} ${back}`);
      }
    }
  };
  // Of an axis' numbers that cross, every second one goes.
  const thin = (drawings) => {
    for (const axis of ["xtick_", "ytick_"]) {
      const texts = drawings.flatMap((each) => [...each.querySelectorAll(`[id^=${axis}] text`)]).filter((text) => text.textContent.trim());
      for (const rest of [2, 2]) {
        const seen = texts.filter((text) => text.style.visibility !== "hidden");
        const boxes = seen.map((text) => text.getBoundingClientRect());
        const crosses = boxes.some((one, number) => number && one.width && boxes[number - 1].right > one.left - 2 &&
          boxes[number - 1].left < one.right && boxes[number - 1].bottom > one.top && boxes[number - 1].top < one.bottom);
        if (crosses) seen.forEach((text, number) => (text.style.visibility = number % rest ? "hidden" : ""));
      }
    }
  };
  // Labels that were placed for smaller letters: each goes below those before it; what is still gives way to them.
  const part = () => {
    const boxOf = (text) => text.getBoundingClientRect();
    const crosses = (one, other) =>
      one.left < other.right && other.left < one.right && one.top < other.bottom - 1 && other.top < one.bottom - 1;
    const placed = [];
    for (const text of moving.querySelectorAll(".fusion-labels text")) {
      const scale = text.parentNode.getScreenCTM()?.d || 1;
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
  const frame = (drawing, [left, top, width, height], stretch) => {
    drawing.setAttribute("viewBox", [left, top, width, height].join(" "));
    drawing.style.aspectRatio = `${width} / ${stretch * height}`;
  };
  const frameAll = (drawings) => {
    for (const { x, y, width, height } of drawings.map((each) => each.getBBox())) {
      if (!width) continue;
      const [left, top, right, bottom] = reached ?? [x, y, x, y];
      reached = [Math.min(left, x), Math.min(top, y), Math.max(right, x + width), Math.max(bottom, y + height)];
    }
    if (!reached) return;
    const [left, top, right, bottom] = reached;
    for (const each of drawings) frame(each, [left - 1, top - 1, right - left + 2, bottom - top + 2], stretches[0] ?? 1);
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
        Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 1.5)));
  };
  const ungrow = (drawings) => {
    for (const text of drawings.flatMap((each) => [...each.querySelectorAll(".fusion-grown:not(.fusion-long)")])) {
      text.classList.remove("fusion-grown");
      text.style.translate = "";
    }
  };
  // A crowded row becomes higher; where that is not enough, its letters become smaller. Returns whether there is a change.
  const ease = (drawings, row, parts) => {
    if (!isCrowded(drawings)) return false;
    const stretch = stretches[row] ?? 1;
    const size = letters[parts[0]] ?? LETTERS[0];
    if (stretch >= TALLEST && size <= LETTERS[1]) return false;
    stretches[row] = stretch < TALLEST ? 1.25 * stretch : 1;
    if (stretch >= TALLEST) for (const part of parts) letters[part] = size - 1;
    return true;
  };
  // What grows may reach further, and then all of it is drawn smaller: once more.
  const growWhole = (layers, longest) => {
    const scale = () => chart.clientWidth / (reached ? reached[2] - reached[0] + 2 : WIDE);
    const drawings = layers.flat();
    for (let pass = 0, settling = SETTLING; pass < PASSES; pass++) {
      const before = scale();
      thicken(0, before);
      heighten(drawings, stretches[0] ?? 1);
      grow(layers, drawings.map(() => before), longest);
      part();
      frameAll(drawings);
      thin(layers[0]);
      if (scale() < 0.996 * before && settling--) {
        ungrow(drawings);
        continue;
      }
      if (!ease(drawings, 0, [0])) return;
      settling = SETTLING;
      reached = null;
      ungrow(drawings);
    }
  };
  const thicken = (row, scale) => {
    if (bar) stretches[row] = Math.max(stretches[row] ?? 1, BAR / (bar * scale));
  };
  // Each part's window shows its own marks alone, so that it may become wider than it was.
  const keepOwn = (layers, windows) => {
    const nodesOf = (drawing) => [...drawing.querySelectorAll("text:not(.fusion-title), path, rect, circle, use, line")].filter((node) => !node.closest("defs"));
    const found = layers.flatMap((drawings) => windows.flatMap((own, number) => {
      const drawing = drawings[number];
      if (!drawing || drawing.isKept) return [];
      drawing.isKept = true;
      const box = drawing.getBoundingClientRect(), view = drawing.viewBox.baseVal;
      const across = view.width / box.width, down = view.height / box.height;
      return nodesOf(drawing).map((node) => {
        const { left, right, top, bottom } = node.getBoundingClientRect();
        const [x0, x1] = [left, right].map((x) => view.x + (x - box.left) * across);
        const [y0, y1] = [top, bottom].map((y) => view.y + (y - box.top) * down);
        return { node, other: x1 < own[0] + 1 || x0 > own[0] + own[2] - 1 || y1 < own[1] + 1 || y0 > own[1] + own[3] - 1 };
      });
    }));
    for (const { node, other } of found) if (other) node.remove();
  };
  // Whether letters reach beyond a row: then its windows are wider from now on, or a sentence folds.
  const widen = (drawings, row, limit) => {
    const frames = drawings.map((each) => each.getBoundingClientRect());
    const left = Math.min(...frames.map((each) => each.left)), right = Math.max(...frames.map((each) => each.right));
    const texts = drawings.flatMap((each) => [...each.querySelectorAll(".fusion-grown:not(.fusion-long)")])
      .filter((text) => text.style.visibility !== "hidden" && !isUpright(text) && text.textContent.trim());
    const boxes = texts.map((text) => text.getBoundingClientRect());
    const out = texts.map((_, number) => boxes[number].left < left - 1 || boxes[number].right > right + 1);
    const long = texts.filter((_, number) => out[number] && boxes[number].width > SENTENCE * chart.clientWidth);
    for (const text of long) text.classList.add("fusion-long");
    told.push(...long);
    if (long.length) return true;
    const wide = row.reduce((sum, [, , width]) => sum + width, 0);
    if (!out.includes(true) || wide > WIDEST * limit) return false;
    const scale = (right - left) / wide;
    const before = Math.max(0, left - Math.min(...boxes.map((each) => each.left))) / scale;
    const after = Math.max(0, Math.max(...boxes.map((each) => each.right)) - right) / scale;
    row[0][0] -= before;
    row[0][2] += before;
    row.at(-1)[2] += after;
    return true;
  };
  const growParts = (layers) => {
    const windows = rows.flat();
    const first = own.flat();
    const longest = 0.97 * Math.max(...first.map(([, , width]) => width));
    const numbers = rows.map((row) => row.map((each) => windows.indexOf(each)));
    const ofRow = (row) => layers.flatMap((drawings) => numbers[row].map((number) => drawings[number])).filter(Boolean);
    const widths = own.map((row) => row.reduce((sum, [, , width]) => sum + width, 0));
    const most = chart.clientWidth / LARGEST;
    const least = widths.map((width) => (flat.length ? Math.min(width, most) : most));
    flat.forEach((share, row) => widths[row] < most && (stretches[row] ??= share));
    keepOwn(layers, first);
    for (let pass = 0; pass < PASSES; pass++) {
      const wide = rows.map((row, place) => Math.max(least[place], row.reduce((sum, [, , width]) => sum + width, 0)));
      const wides = windows.map((_, number) => wide[numbers.findIndex((row) => row.includes(number))]);
      rows.forEach((_, row) => thicken(row, chart.clientWidth / wide[row]));
      rows.forEach((_, row) => heighten(ofRow(row), stretches[row] ?? 1));
      grow(layers, wides.map((each) => chart.clientWidth / each), longest);
      rows.forEach((row, place) => row.forEach((found, number) => {
        for (const drawing of layers.map((drawings) => drawings[numbers[place][number]]).filter(Boolean)) {
          frame(drawing, found, stretches[place] ?? 1);
          drawing.style.width = `${(100 * found[2]) / wide[place]}%`;
        }
      }));
      thin(layers[0]);
      const limits = own.map((row) => row.reduce((sum, [, , width]) => sum + width, 0));
      const changed = rows.map((row, place) => widen(ofRow(place), row, limits[place]) || ease(ofRow(place), place, numbers[place]));
      if (!changed.includes(true)) return;
      rows.forEach((_, row) => changed[row] && ungrow(ofRow(row)));
    }
  };
  const fit = () => {
    heading.replaceChildren();
    below.replaceChildren();
    if (!narrow) return;
    const layers = [still, moving, said].map((layer) => [...layer.querySelectorAll("svg")]);
    const write = (place, line, tag) => (place.appendChild(document.createElement(tag)).textContent = line);
    const title = moving.querySelector(".fusion-title");
    if (title) write(heading, title.textContent, "b");
    if (rows.length) growParts(layers);
    else growWhole(layers, 0.7 * WIDE);
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
  let alone = null; // where the picture says some of it: what only the line says
  let doing = "";
  const write = () => {
    const shown = moving.querySelector(".fusion-title")?.textContent;
    const at = shown && !doing ? text.indexOf(shown) : -1;
    if (alone !== null && !doing) {
      const heard = document.createElement("span"), seen = document.createElement("span");
      heard.className = "fusion-heard";
      heard.textContent = text;
      seen.setAttribute("aria-hidden", "true");
      seen.textContent = alone;
      line.replaceChildren(heard, seen);
    } else if (at < 0) {
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
    const frame = frameOf(model.get("data"), positions, narrow);
    put(moving, frame.svg);
    fit();
    text = `${frame.text} ${model.get("said").text}`.trim();
    quiet = Boolean(frame.quiet) && !model.get("said").text;
    alone = frame.line === undefined ? null : `${frame.line} ${model.get("said").text}`.trim();
    chart.setAttribute("aria-label", text);
    write();
    if (tabled !== frame.table) table.innerHTML = tabled = frame.table;
  };
  const redraw = () => {
    work("");
    reached = null;
    still.innerHTML = model.get("still");
    const { parts = "", bar: lowest = 0, flat: flattened = "" } = still.querySelector("svg")?.dataset ?? {};
    bar = Number(lowest);
    flat = flattened.split(" ").filter(Boolean).map(Number);
    rows = parts.split(";").filter(Boolean).map((row) => row.split(",").map((each) => each.split(" ").map(Number)));
    own = structuredClone(rows);
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
  const stop = followWidth({ el, chart, table }, (now) => {
    narrow = now;
    redraw();
  });
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
    stop();
    document.removeEventListener("change", choose, true);
  };
}
export default { render };
