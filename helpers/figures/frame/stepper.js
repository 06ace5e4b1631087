// Steps through a recorded launch. Every frame was worked out beforehand (stepper.py): here cells are painted, and what
// moves flies from memory to its lane or back.
const FLIGHT = 420; // ms
const PAUSE = 900; // ms between steps while playing
const CODES = { " ": "empty", v: "value", m: "masked", o: "outside", r: "read", w: "written", g: "gap" };
const [LEAST, WIDEST] = [300, 820]; // pixels: a picture's width, for which it is laid out
const NARROW = 480; // pixels: on a narrower page letters are larger, and numbers have larger cells
const WORDS = 1.2; // how much larger
const LABEL = 14; // above a grid
const LETTERS = [11, 12]; // pixels: size of a label's letters, on a wide page and a narrow one
const MEMORY = 0.6; // of the view, at most, if the chip needs the rest: then memory scrolls in its own part
const WAYS = ["reading", "writing", "stray"];

function render({ model, el }) {
  const data = model.get("data");
  const frames = data.frames.map(
    ([line, program, text, read, written, clear, cells, lit, now, boxes, flights]) => (
      { line, program, text, read, written, clear, cells, lit, now, boxes, flights }));
  const make = (parent, tag, attributes = {}, text) => {
    const node = parent.appendChild(document.createElement(tag));
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  el.classList.add("fusion-explorer", "fusion-stepper");
  el.setAttribute("data-lm-suppress-shortcuts", "true"); // arrows and space are the widget's
  const controls = make(el, "div", { class: "fusion-stepper-controls", role: "group", "aria-label": `Step through ${data.kernel}` });
  const button = (label, sign, act) => {
    const node = make(controls, "button", { type: "button", "aria-label": label, title: label }, sign);
    node.addEventListener("click", act);
    return node;
  };
  button("Back to the start", "|◀", () => go(0));
  button("Step back", "◀", () => go(at - 1));
  const player = button("Play", "Play ▶", () => (playing ? pause() : play()));
  button("Step", "Step ▶|", () => go(at + 1));
  const next = () => frames.findIndex((frame, number) => number > at && frame.flights.length);
  button("To the next read or write", "Memory ▶▶|", () => go(next() < 0 ? frames.length - 1 : next()));
  const slider = make(controls, "input", { type: "range", min: 0, max: frames.length - 1, value: 0, "aria-label": "step" });
  slider.addEventListener("input", () => go(Number(slider.value), true));
  const choice = make(make(controls, "label", {}, `${data.who} `), "select", { "aria-label": data.who });
  data.programs.forEach((name, number) => make(choice, "option", { value: number }, name));
  choice.addEventListener("change", () => go(frames.findIndex((frame) => frame.program === Number(choice.value))));
  const counter = make(controls, "span", { class: "fusion-stepper-bytes" });
  const tally = ["read", "written"].map((way, place) => {
    const part = make(counter, "span", { class: way }, `${way} `);
    const number = make(part, "b", {}, "0");
    make(part, "span", {}, ` of ${data.total[place].toLocaleString("en")} B`);
    return number;
  });

  const status = make(el, "div", { role: "status", "aria-live": "polite" });
  const panes = make(el, "div", { class: "fusion-stepper-panes" });
  const source = make(panes, "div", { class: "fusion-stepper-source", tabindex: 0, "aria-label": "source" });
  const lines = data.source.map((text, number) => {
    const line = make(source, "div", { "data-line": data.numbers[number] });
    if (number && data.functions[number] !== data.functions[number - 1]) line.classList.add("begins");
    make(line, "span", { "aria-hidden": "true" }, String(data.numbers[number]));
    make(line, "code", {}, text || " ");
    return line;
  });
  // As high as the window allows: memory stays in sight, and both it and what is on the chip scroll to what changes,
  // from the keyboard too.
  const pane = make(panes, "div", { class: "fusion-stepper-frame" });
  const view = make(pane, "div", { class: "fusion-stepper-view", tabindex: 0, role: "group", "aria-label": "values" });
  const heard = make(view, "span", { class: "fusion-heard", role: "img" }); // the picture, for a voice
  const chart = make(view, "div", { class: "fusion-stepper-chart" });
  const canvas = make(pane, "canvas", { "aria-hidden": "true" });
  const grids = data.grids.map(([name, x, y, columns, count, w, h, words, memory, first, of]) => (
    { name, x, y, columns, count, w, h, words, memory, first, of }));
  const rounded = (number) => Math.round(number * 10) / 10;
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  // Boxes around sectors, as cells: [grid, first cell, cells, line], so that they can be drawn in any layout.
  const sectors = frames.map(({ boxes }) => boxes.map(([x, y, w, , line]) => {
    const grid = grids.find((each) => each.memory && x >= each.x - 0.5 && x < each.x + each.columns * each.w &&
      y >= each.y && y < each.y + LABEL + Math.ceil(each.count / each.columns) * each.h);
    const row = Math.round((y - grid.y - LABEL) / grid.h);
    return [grid, row * grid.columns + Math.round((x - grid.x) / grid.w), Math.round(w / grid.w), line];
  }));
  // Laid out for a width, so that letters keep their size: numbers have as many in a line as fit, tiles keep their shape.
  const ruler = document.createElement("canvas").getContext("2d");
  const laidOut = (room) => {
    const slim = room < NARROW;
    const family = getComputedStyle(el).fontFamily || ruler.font.split("px ")[1]; // none before it is on the page
    ruler.font = `bold ${LETTERS[Number(slim)]}px ${family}`; // bold where its values change
    const tensors = grids.filter((grid) => grid.memory && !grid.words);
    const all = tensors.reduce((sum, { columns }) => sum + columns, 0);
    const placed = grids.map((grid) => {
      const name = slim ? grid.name.split("  ")[0] : grid.name;
      if (tensors.includes(grid)) { // beside each other on a narrow page, where they fit
        const most = slim ? Math.floor((room - 6 * tensors.length) / all) : Math.floor(room / grid.columns);
        const side = Math.min(grid.w, Math.max(3, most));
        return { ...grid, w: side, h: side, name };
      }
      if (!grid.words) return { ...grid, name };
      const w = slim ? Math.max(grid.w * WORDS, 30) : grid.w;
      const columns = Math.min(grid.columns, grid.columns * w <= room ? grid.columns : 2 ** Math.floor(Math.log2(room / w)) || 1);
      return { ...grid, w, columns, h: slim ? 24 : grid.h, name };
    });
    const flow = (some, from) => {
      let x = 0, y = from, lowest = from;
      for (const grid of some) {
        const width = Math.max(Math.min(grid.count, grid.columns) * grid.w, ruler.measureText(grid.name).width + 2);
        if (x && x + width > room) [x, y] = [0, lowest];
        [grid.x, grid.y] = [x, y];
        x += width + (slim ? 6 : 12);
        lowest = Math.max(lowest, y + LABEL + Math.ceil(grid.count / grid.columns) * grid.h + 6);
      }
      return lowest;
    };
    const kinds = [(grid) => grid.count === 1, (grid) => grid.count > 1 && grid.words, (grid) => !grid.words];
    const shared = grids.map((grid) => grid.memory && grid.y >= data.chip);
    const flowAll = (some, from) => kinds.reduce((y, kind) => flow(some.filter(kind), y), from);
    const off = placed.filter((grid, number) => grid.memory && !shared[number]).sort((one, other) => one.words - other.words);
    const chip = flow(off, 18) + 14;
    const own = flowAll(placed.filter((grid) => !grid.memory && !grid.of), flow(placed.filter((_, number) => shared[number]), chip + 12));
    const called = [...new Set(data.functions)].filter(Boolean);
    const ends = called.map((name) => flowAll(placed.filter((grid) => grid.of === name), own));
    return [placed, chip, Math.max(own, ...ends) + 4];
  };
  const fitting = () => (chart.clientWidth ? Math.min(WIDEST, Math.max(LEAST, chart.clientWidth - 4)) : data.size[0]);
  let narrow, places, layout, width, chipAt, height, outlines;
  const drawn = (grid, upper) => {
    const inset = grid.words ? 1.5 : 0.3;
    const w = rounded(grid.w - 2 * inset), h = rounded(grid.h - 2 * inset);
    let text = "";
    for (let cell = 0; cell < grid.count; cell++) {
      const left = grid.x + (cell % grid.columns) * grid.w;
      const top = grid.y - upper + LABEL + Math.floor(cell / grid.columns) * grid.h;
      const x = rounded(left + inset), y = rounded(top + inset);
      if (grid.words) {
        text += `<rect x="${x}" y="${y}" width="${w}" height="${h}"/>`;
        text += `<text x="${rounded(left + grid.w / 2)}" y="${rounded(top + grid.h / 2 + (narrow ? 4.4 : 4))}"></text>`;
      } else outlines[grid.first + cell] = `M${x} ${y}h${w}v${h}h${-w}z`;
    }
    return `<g class="${grid.memory ? "memory" : "lanes"}${grid.words ? "" : " shaded"}" data-place="${grids.findIndex(({ first }) => first === grid.first)}">` +
      `<text class="name" x="${grid.x}" y="${rounded(grid.y - upper + 10)}">${escaped(grid.name)}</text><g class="cells">${text}</g></g>`;
  };
  let groups, insides, rects, words, moving, memory;
  const lay = () => {
    width = fitting();
    narrow = width < NARROW;
    outlines = [];
    el.classList.toggle("fusion-narrow", narrow);
    [layout, chipAt, height] = laidOut(width);
    const top = chipAt - 4;
    const above = layout.filter(({ y }) => y < top), below = layout.filter(({ y }) => y >= top);
    chart.innerHTML = `<div class="fusion-stepper-memory"><svg viewBox="-2 0 ${width + 4} ${top}" aria-hidden="true">
      <text class="side" x="${width}" y="10">memory</text>${above.map((grid) => drawn(grid, 0)).join("")}<g class="fusion-moving"></g>
      <line class="border" x1="0" x2="${width}" y1="${top - 0.5}" y2="${top - 0.5}"/></svg></div>
      <svg viewBox="-2 0 ${width + 4} ${height - top}" aria-hidden="true">
      <text class="side" x="${width}" y="12">on the chip</text>${below.map((grid) => drawn(grid, top)).join("")}</svg>`;
    moving = chart.querySelector(".fusion-moving");
    memory = chart.querySelector(".fusion-stepper-memory");
    groups = [...chart.querySelectorAll("g.memory, g.lanes")].sort((one, other) => one.dataset.place - other.dataset.place);
    insides = groups.map((group) => group.querySelector(".cells"));
    const cellsOf = (kind) => grids.flatMap(({ words, count }, number) =>
      words ? [...insides[number].querySelectorAll(kind)] : new Array(count).fill(null));
    [rects, words] = [cellsOf("rect"), cellsOf("text")];
    places = layout.flatMap(({ x, y, columns, count, w, h }) =>
      Array.from({ length: count }, (_, cell) => [x + (cell % columns + 0.5) * w, y + LABEL + (Math.floor(cell / columns) + 0.5) * h, w, h]));
    shownClass = new Array(rects.length).fill(null);
    shownText = new Array(rects.length).fill(null);
  };
  let shownClass, shownText;
  lay();
  const occurs = (code) => frames.some(({ cells }) => cells.some(([, codes]) => codes.includes(code)));
  make(el, "div", { class: "fusion-stepper-key", "aria-hidden": "true" }).innerHTML =
    `<span class="reading">being read</span><span class="read">was read</span><span class="writing">being written</span>` +
    `<span class="written">was written</span>` + (occurs("m") ? `<span class="masked">${data.who.includes(",") ? "idle lane" : "masked position"}</span>` : "") +
    (occurs("o") ? `<span class="outside">out of bounds</span>` : "") + `<span class="sector">32 B sector</span>` +
    (grids.some((grid) => !grid.words && !grid.memory) ? `<span class="above">above zero</span><span class="below">below zero</span>` : "") +
    `<span class="keys">keys: ← → step, space play, Home, End, PgUp and PgDn program</span>`;

  const cellCount = grids.reduce((sum, { count }) => sum + count, 0);
  const chip = Math.min(...grids.filter((grid) => !grid.memory).map((grid) => grid.first), cellCount);
  // It opens on the first step that reads or writes, when there is something to see; Play begins at the start.
  const opens = Math.max(0, frames.findIndex((frame) => frame.flights.length));
  let opening = true;
  let codes, texts, at = -1, playing = null, told = [0, 0], moved = 0;

  const apply = ([first, code, words]) => {
    for (let cell = 0; cell < code.length; cell++) {
      codes[first + cell] = code[cell];
      texts[first + cell] = words[cell];
    }
  };
  const state = (from, until) => {
    if (from < 0) {
      codes = new Array(cellCount).fill(" ");
      texts = new Array(cellCount).fill("");
      data.initial.forEach(apply);
    }
    for (let number = Math.max(0, from + 1); number <= until; number++) {
      if (frames[number].clear) {
        codes.fill(" ", chip);
        texts.fill("", chip);
      }
      frames[number].cells.forEach(apply);
    }
  };
  // The cells of a tile that look alike are one shape: a page with an element for each of thousands is slow to draw.
  const shade = (inside, first, count) => {
    const shapes = new Map();
    for (let cell = first; cell < first + count; cell++) {
      const look = `class="${shownClass[cell]}" style="--shade: ${Math.abs(Number(shownText[cell])) / 9}"`;
      shapes.set(look, (shapes.get(look) ?? "") + outlines[cell]);
    }
    inside.innerHTML = [...shapes].map(([look, outline]) => `<path ${look} d="${outline}"/>`).join("");
  };
  const paint = (frame) => {
    const now = new Map(WAYS.flatMap((way, number) => frame.now[number].map((cell) => [cell, way])));
    grids.forEach(({ first, count, words: inWords }, number) => {
      let isShaded = false;
      for (let cell = first; cell < first + count; cell++) {
        let name = CODES[codes[cell]];
        if (!inWords && texts[cell] !== "" && texts[cell] !== "0") name += texts[cell][0] === "-" ? " below" : " above";
        if (now.has(cell)) name += ` ${now.get(cell)}`;
        const looks = shownClass[cell] !== name, reads = shownText[cell] !== texts[cell];
        if (inWords && looks) rects[cell].setAttribute("class", name);
        if (inWords && reads) words[cell].textContent = texts[cell];
        if (looks || reads) [shownClass[cell], shownText[cell], isShaded] = [name, texts[cell], !inWords];
      }
      if (isShaded) shade(insides[number], first, count);
    });
    const running = data.functions[frame.line];
    groups.forEach((group, number) => {
      group.classList.toggle("lit", frame.lit.includes(number));
      group.classList.toggle("away", grids[number].of !== "" && grids[number].of !== running);
    });
    moving.innerHTML = sectors[at].flatMap(([{ first }, begin, count, line]) => {
      const { x, y, columns, w, h } = layout[grids.findIndex((grid) => grid.first === first)];
      const rows = [];
      for (let cell = begin; cell < begin + count; ) {
        const here = Math.min(columns - (cell % columns), begin + count - cell);
        rows.push(`<rect x="${rounded(x + (cell % columns) * w)}" y="${y + LABEL + Math.floor(cell / columns) * h}" width="${rounded(here * w)}" height="${h}" stroke-width="${line}"/>`);
        cell += here;
      }
      return rows;
    }).join("") || "<g/>";
  };

  // Asking the page for a size after it was changed makes it lay everything out at once: it tells by itself.
  let scale = 1, across = 0, seen = Infinity, pinned = 0, cut = 0; // pixels of the view, of memory, and what it hides
  const measured = () => {
    if (width !== fitting()) {
      lay();
      if (at >= 0) paint(frames[at]);
    }
    scale = chart.clientWidth / (width + 4);
    [across, seen] = [view.clientWidth, view.clientHeight];
    const upper = (chipAt - 4) * scale, lower = (height - chipAt + 4) * scale;
    const most = parseFloat(getComputedStyle(view).maxHeight) || Infinity;
    pinned = Math.min(upper, Math.max(MEMORY * most, most - lower));
    cut = upper - pinned;
    memory.style.maxHeight = cut ? `${pinned}px` : "";
    memory.classList.toggle("cut", cut > 0);
    const scrolls = { tabindex: 0, role: "group", "aria-label": "memory" };
    for (const [name, value] of Object.entries(scrolls)) {
      if (cut) memory.setAttribute(name, value);
      else memory.removeAttribute(name);
    }
  };
  const sizes = new ResizeObserver(measured);
  sizes.observe(chart);
  sizes.observe(view);
  const isAbove = (grid) => grid.y < chipAt - 4; // in memory's own part
  // The heights at which the lit grids on the chip begin and end, in pixels of the picture.
  const span = (frame) => {
    const lit = frame.lit.map((number) => layout[number]).filter((grid) => !isAbove(grid));
    const ends = lit.map(({ y, columns, count, h }) => y + LABEL + Math.ceil(count / columns) * h);
    return [Math.min(...lit.map((grid) => grid.y)) * scale - cut, Math.max(...ends) * scale - cut];
  };
  // In memory: where the cells are that this step, or the next one that does, reads or writes.
  const scrollMemory = (from) => {
    const frame = frames.slice(from).find(({ flights, now }) => flights.length || now.flat().length);
    const cells = frame ? [...frame.now.flat(), ...frame.flights.flat()] : [];
    const grid = (cell) => layout.findLastIndex(({ first }) => first <= cell);
    const shown = cells.filter((cell) => layout[grid(cell)].memory && isAbove(layout[grid(cell)]));
    if (!shown.length) return;
    const top = Math.min(...shown.map((cell) => places[cell][1] - places[cell][3] / 2)) * scale;
    const bottom = Math.max(...shown.map((cell) => places[cell][1] + places[cell][3] / 2)) * scale;
    const name = Math.min(...shown.map((cell) => layout[grid(cell)].y)) * scale;
    const at = memory.scrollTop;
    if (top >= at && bottom <= at + pinned) return;
    memory.scrollTop = bottom - name <= pinned ? name : Math.min(top - 8, Math.max(0, bottom - pinned + 8));
  };

  // Flights and counting, on a canvas over the picture
  let flying = 0;
  const fly = (frame) => {
    const start = performance.now(), from = told.slice(), turn = ++flying;
    const to = [frame.read, frame.written];
    const still = calm.matches;
    const context = canvas.getContext("2d");
    const dense = devicePixelRatio || 1;
    const wanted = [Math.round(across * dense), Math.round(Math.min(seen, height * scale) * dense)];
    if (canvas.width !== wanted[0] || canvas.height !== wanted[1]) {
      [canvas.width, canvas.height] = wanted;
      canvas.style.width = `${wanted[0] / dense}px`;
      canvas.style.height = `${wanted[1] / dense}px`;
    }
    const reading = frame.now[0].length > 0;
    context.setTransform(1, 0, 0, 1, 0, 0);
    const tick = (time) => {
      if (turn !== flying) return;
      const part = still ? 1 : Math.min(1, Math.max(0, (time - start) / FLIGHT));
      const eased = part < 0.5 ? 2 * part * part : 1 - 2 * (1 - part) ** 2;
      told = to.map((end, place) => part < 1 ? from[place] + 4 * Math.round(((end - from[place]) * eased) / 4) : end);
      told.forEach((number, place) => (tally[place].textContent = number.toLocaleString("en")));
      context.clearRect(0, 0, canvas.width, canvas.height);
      if (part === 1) return;
      context.fillStyle = reading ? STYLE.read : STYLE.written;
      const scrolled = view.scrollTop / scale, memoryAt = memory.scrollTop / scale;
      const seenAt = (cell) => {
        const [x, y, w, h] = places[cell];
        return [x, y < chipAt - 4 ? y - memoryAt : y - cut / scale - scrolled, w, h];
      };
      for (const [origin, target] of frame.flights) {
        const [x0, y0, w0, h0] = seenAt(origin), [x1, y1, w1, h1] = seenAt(target);
        const w = (w0 + (w1 - w0) * eased) * 0.7, h = (h0 + (h1 - h0) * eased) * 0.7;
        const x = x0 + (x1 - x0) * eased - w / 2 + 2, y = y0 + (y1 - y0) * eased - h / 2;
        context.fillRect(x * scale * dense, y * scale * dense, w * scale * dense, h * scale * dense);
      }
      requestAnimationFrame(tick);
    };
    if (still || (from.every((number, place) => number === to[place]) && !frame.flights.length)) tick(start + FLIGHT);
    else requestAnimationFrame(tick);
  };

  const go = (wanted, scrubbed = false) => {
    const to = Math.max(0, Math.min(frames.length - 1, wanted));
    if (playing && (to !== at + 1 || scrubbed)) pause();
    if (to === at) return;
    opening = at < 0;
    const onward = to === at + 1, frame = frames[to];
    const line = lines[frame.line], top = line.offsetTop, bottom = top + line.offsetHeight;
    const above = top < source.scrollTop, below = bottom > source.scrollTop + source.clientHeight;
    const [upper, lower] = span(frame), from = view.scrollTop;
    const hidden = upper < Infinity && (upper < from + pinned || lower > from + seen);
    state(to > at ? at : -1, to);
    at = to;
    paint(frame);
    if (cut) scrollMemory(to);
    if (hidden) view.scrollTop = Math.min(upper - pinned - 8, Math.max(0, lower - seen + 8));
    if (above || below) source.scrollTop = top - 60;
    lines.forEach((line, number) => {
      line.classList.toggle("lit", number === frame.line);
      if (number === frame.line) line.setAttribute("aria-current", "step");
      else line.removeAttribute("aria-current");
    });
    slider.value = to;
    slider.setAttribute("aria-valuetext", `${to + 1} of ${frames.length}`);
    choice.value = frame.program;
    status.textContent = `Step ${to + 1} of ${frames.length}. ${frame.text}`;
    heard.setAttribute("aria-label", frame.text);
    // Nobody who hurries waits for what flies.
    const calmly = onward && !scrubbed && performance.now() - moved > 250;
    moved = performance.now();
    if (!calmly) told = [frame.read, frame.written];
    fly(calmly ? frame : { ...frame, flights: [] });
  };
  const pause = () => {
    clearTimeout(playing);
    playing = null;
    player.textContent = "Play ▶";
    player.setAttribute("aria-label", "Play");
    status.setAttribute("aria-live", "polite");
  };
  const play = () => {
    if (opening || at === frames.length - 1) go(0);
    player.textContent = "Pause ||";
    player.setAttribute("aria-label", "Pause");
    status.setAttribute("aria-live", "off"); // a voice cannot keep up
    const next = () => {
      if (!el.isConnected) return pause();
      go(at + 1);
      if (at === frames.length - 1) pause();
      else playing = setTimeout(next, frames[at].flights.length ? PAUSE : PAUSE / 2);
    };
    playing = setTimeout(next, 0);
  };
  el.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const other = (by) => {
      const program = Math.max(0, Math.min(data.programs.length - 1, frames[at].program + by));
      go(frames.findIndex((frame) => frame.program === program));
    };
    const keys = {
      ArrowRight: () => go(at + 1), ArrowLeft: () => go(at - 1), Home: () => go(0), End: () => go(frames.length - 1),
      PageDown: () => other(1), PageUp: () => other(-1), " ": () => (playing ? pause() : play()),
    };
    if (event.target === choice) return event.stopPropagation(); // else JupyterLab takes the list's arrows
    if (!keys[event.key]) return;
    if (event.key === " " && event.target.tagName === "BUTTON") return; // presses it
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  });
  // A click anywhere on the picture makes the keys its own; text that was marked to be copied stays marked.
  el.addEventListener("click", (event) => {
    if (!event.target.closest("button, input, select, .fusion-stepper-source") && getSelection().isCollapsed)
      slider.focus({ preventScroll: true });
  });
  go(opens);
  return () => {
    pause();
    sizes.disconnect();
  };
}
export default { render };
