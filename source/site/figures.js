// Live figures where no kernel answers: the sliders and choices that JupyterLab would make, and the model that a figure's
// own script asks. Every state was recorded beforehand (source/record_figures.py).
"use strict";
{
  const POSITIONS = ["first", "second", "third"];
  const CLEAR = 320; // pixels from a figure's top that its controls never cover on a phone

  const unpacked = async (packed) => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).json();
  };

  class Model {
    #values;
    #heard = new Map();
    constructor(values) {
      this.#values = values;
    }
    get(name) {
      return this.#values[name];
    }
    set(name, value) {
      this.#values[name] = value;
      for (const tell of this.#heard.get(`change:${name}`) ?? []) tell();
    }
    on(names, tell) {
      for (const name of names.split(" ")) this.#heard.set(name, [...(this.#heard.get(name) ?? []), tell]);
    }
    off() {}
    save_changes() {}
  }

  const make = (parent, tag, attributes = {}, text = "") => {
    const node = parent.appendChild(document.createElement(tag));
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.textContent = text;
    return node;
  };

  // What begins folded is under one heading, `folded`.
  const placeFor = (row, folded) => {
    if (!folded) return row;
    let more = row.querySelector("details");
    if (!more) {
      more = make(row, "details", { class: "more" });
      make(more, "summary", {}, folded);
      make(more, "div", { class: "controls" });
    }
    row.append(more); // it comes last
    return more.lastChild;
  };

  const addSlider = (row, model, { name, labels, folded }, trait) => {
    const label = make(placeFor(row, folded), "label", {}, name);
    const slider = make(label, "input", { type: "range", min: 0, max: labels.length - 1, step: 1 });
    slider.value = model.get(trait);
    const shown = make(label, "span", { class: "value", "aria-hidden": "true" }); // a voice has aria-valuetext
    const say = () => {
      shown.textContent = labels[slider.value];
      slider.setAttribute("aria-valuetext", labels[slider.value]);
    };
    slider.addEventListener("input", () => {
      say();
      model.set(trait, Number(slider.value));
    });
    say();
  };

  const addChoices = (row, model, figure) => {
    const chosen = figure.choices.map(({ at }) => at);
    let asked = 0; // the last one wins, should unpacking take its time
    const change = async () => {
      const turn = ++asked;
      const number = figure.choices.reduce((sum, { labels }, place) => sum * labels.length + chosen[place], 0);
      const state = await unpacked(figure.states[number]);
      if (turn !== asked) return;
      model.set("still", state.still);
      model.set("data", state.data);
    };
    figure.choices.forEach(({ name, labels, at, folded }, place) => {
      if (labels.length < 2) return; // only a kernel can change it
      const select = make(make(placeFor(row, folded), "label", {}, name), "select", { "aria-label": name });
      labels.forEach((label, number) => make(select, "option", { value: number }, label));
      select.value = at;
      select.addEventListener("change", () => {
        chosen[place] = Number(select.value);
        change();
      });
    });
  };

  // On a phone the picture comes first, and its controls stay in the window while it passes.
  const keepClear = (box, row, chart) => {
    box.classList.add("picture-first");
    const resized = new ResizeObserver(() => {
      box.style.setProperty("--controls", `${row.offsetHeight}px`);
      const below = chart.getBoundingClientRect().bottom - box.getBoundingClientRect().top;
      box.style.setProperty("--clear", `${Math.min(CLEAR, below)}px`);
    });
    resized.observe(row);
    resized.observe(chart);
  };

  const enliven = async (place) => {
    const figure = window.fusionLive[place.dataset.figure];
    // What the choices start with: `states` holds their combinations, the last choice running fastest.
    const start = figure.choices.reduce((sum, { labels, at }) => sum * labels.length + at, 0);
    const values = await unpacked(figure.states[start]);
    values.said = { svg: "", text: "" }; // no guess is marked on a chart here
    POSITIONS.forEach((name, number) => (values[name] = figure.positions[number]));
    const model = new Model(values);
    const box = document.createElement("div");
    box.className = "fusion-controls";
    let row = null;
    if (figure.sliders.length || figure.choices.some(({ labels }) => labels.length > 1)) {
      row = make(box, "div", { class: "controls" });
      figure.sliders.forEach((slider, number) => addSlider(row, model, slider, POSITIONS[number]));
      addChoices(row, model, figure);
    }
    place.replaceChildren(box);
    try {
      window.fusionStages[figure.stage]({ model, el: make(box, "div") });
      place.dispatchEvent(new Event("toggle")); // it may be wider than the still was
      const chart = row && box.querySelector(".fusion-chart");
      if (chart) keepClear(box, row, chart);
    } catch (error) {
      place.replaceChildren(...place.still);
      console.error(error);
    }
  };

  // A figure is unpacked when it comes near: some hold a megabyte of frames.
  const near = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        near.unobserve(target);
        target.still = [...target.childNodes];
        enliven(target);
      }
    },
    { rootMargin: "0px 0px 600px 0px" },
  );
  for (const place of document.querySelectorAll(".live")) near.observe(place);
}
