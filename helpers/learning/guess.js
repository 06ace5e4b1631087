// A field for a guess, and the answer under it. Enter keeps the guess and runs the cells up to the one that answers;
// Shift+Enter goes on behind them; Escape leaves. A cell run by Shift+Enter gives the keyboard to its field, and an empty
// field gives it on to the next cell with the next Shift+Enter. An answer stays folded, also when its cell is run, until
// the reader guesses or asks for it. Where the page's JupyterLab cannot be reached, the reader runs the cells.
const PATIENCE = 4000; // ms until a kernel that says nothing is said to do so

function place(el) {
  for (const panel of globalThis.jupyterapp?.shell.widgets("main") ?? []) {
    const cells = panel.content?.widgets ?? [];
    const at = cells.findIndex((cell) => cell.node.contains(el));
    if (at >= 0 && panel.content.extendContiguousSelectionTo) return { notebook: panel.content, at };
  }
  return null;
}

function answers({ notebook, at }) {
  const source = (cell) => cell.model.sharedModel.getSource();
  const name = /(\w+)\s*=\s*predict_first\(/.exec(source(notebook.widgets[at]))?.[1];
  if (!name) return at;
  const asks = new RegExp(`\\b${name}\\.compare\\(`);
  const found = notebook.widgets.findIndex((cell, number) => number > at && asks.test(source(cell)));
  return found < 0 ? at : found;
}

const waitsFor = (cell) => cell.model.getMetadata("fusion_waits") ?? [];

function expose(cell) {
  cell.model.deleteMetadata("fusion_waits");
  const { outputs_hidden, ...rest } = cell.model.getMetadata("jupyter") ?? {};
  cell.model.setMetadata("jupyter", rest); // read when a cell that was never in sight is drawn
  cell.outputHidden = false;
}

// What answers this question and no other that is still open is in sight from now on.
function unfold(notebook, question) {
  for (const cell of notebook.widgets) {
    const waits = waitsFor(cell);
    if (!waits.includes(question)) continue;
    const others = waits.filter((each) => each !== question);
    if (others.length) cell.model.setMetadata("fusion_waits", others);
    else expose(cell);
  }
}

// JupyterLab shows the output of every cell that it runs. One that waits for a guess is folded again, also where it was
// run before the question's field was there; a click on a folded output is a reader who asks for it.
const followed = (globalThis.fusionFolded ??= new WeakSet());
function keepFolded(notebook) {
  for (const cell of notebook.widgets) {
    if (followed.has(cell) || !waitsFor(cell).length) continue;
    followed.add(cell);
    const fold = () => waitsFor(cell).length && (cell.outputHidden = true);
    cell.model.sharedModel.changed.connect((_, change) => change.executionStateChange && fold());
    cell.node.addEventListener("click", ({ target }) => target.closest(".jp-OutputPlaceholder") && expose(cell), true);
    fold();
  }
}

function render({ model, el }) {
  el.classList.add("fusion-guess");
  const id = `fusion-guess-${Math.random().toString(36).slice(2)}`; // each view loads this script anew
  const form = el.appendChild(document.createElement("form"));
  form.innerHTML =
    `<label for="${id}"></label><input id="${id}" type="text" autocomplete="off" placeholder="your guess" ` +
    `aria-describedby="${id}-unit ${id}-said"><span id="${id}-unit"></span><button type="submit">Guess</button>` +
    `<button type="button">Show me</button>`;
  const [label, input, unit, , reveal] = form.children;
  const line = el.appendChild(document.createElement("div"));
  line.id = `${id}-said`;
  line.setAttribute("role", "status");
  const picture = el.appendChild(document.createElement("div"));
  const question = model.get("question");
  label.textContent = question.endsWith("?") ? question : `${question}:`;
  unit.textContent = model.get("unit");
  input.value = model.get("typed");

  // Found, and in sight: whoever runs the cells below without a guess has yet to ask for their answer.
  const isTold = () => {
    if (!model.get("found") || model.get("picture")) return model.get("found");
    return !place(el)?.notebook.widgets.some((cell) => waitsFor(cell).includes(question));
  };
  const show = () => {
    const told = isTold();
    line.textContent = told || !model.get("found") ? model.get("said") : "";
    picture.innerHTML = model.get("picture");
    reveal.hidden = told;
  };
  model.on("change:said change:picture change:found", show);
  model.on("change:typed", () => document.activeElement === input || (input.value = model.get("typed")));

  let turn = 0;
  let left = false; // by Escape while the kernel still answered: then the keyboard stays where the reader went
  const tell = () =>
    new Promise((resolve) => {
      // The kernel answers each turn: only then are the cells run, so that they find the guess.
      turn = Math.max(turn, model.get("heard")) + 1;
      const late = setTimeout(() => {
        line.textContent = "The kernel does not answer. If it is not busy, run this cell again.";
      }, PATIENCE);
      const heard = () => {
        if (model.get("heard") < turn) return;
        model.off("change:heard", heard);
        clearTimeout(late);
        resolve(model.get("readable"));
      };
      model.on("change:heard", heard);
      model.set("typed", input.value);
      model.set("turn", turn);
      model.save_changes();
    });

  // Cells that were run without the guess say that there was none: they are run again.
  const answer = async (goesOn, told = model.get("found")) => {
    const here = place(el);
    if (!here) {
      if (!model.get("found")) line.textContent = `${model.get("said")} Run the cells below for the answer.`.trim();
      return;
    }
    const { notebook, at } = here;
    const to = answers(here);
    if (to > at && !told) {
      line.textContent = "…";
      notebook.deselectAll();
      notebook.activeCellIndex = at + 1;
      if (to > at + 1) notebook.extendContiguousSelectionTo(to);
      await globalThis.jupyterapp.commands.execute("notebook:run-cell");
      notebook.deselectAll();
    }
    unfold(notebook, question);
    show();
    if (goesOn) {
      notebook.activeCellIndex = Math.min(to + 1, notebook.widgets.length - 1);
      notebook.mode = "command";
      notebook.activate();
      notebook.scrollToItem?.(notebook.activeCellIndex, "smart");
    } else if (!left) {
      notebook.activeCellIndex = at;
      el.scrollIntoView({ block: "nearest" });
      input.focus();
    }
  };
  const guess = async (goesOn) => {
    left = false;
    const told = isTold();
    if (!input.value.trim() && !told) {
      line.textContent = "Type a number first, or press “Show me”.";
      return;
    }
    if (await tell()) await answer(goesOn, told);
  };
  const leave = () => {
    const here = place(el);
    left = true;
    input.blur();
    if (!here) return;
    here.notebook.activeCellIndex = here.at;
    here.notebook.mode = "command";
    here.notebook.activate();
  };

  const pass = () => {
    const here = place(el);
    leave();
    if (!here || here.at + 1 >= here.notebook.widgets.length) return;
    here.notebook.activeCellIndex = here.at + 1;
    globalThis.jupyterapp.commands.execute("notebook:run-cell-and-select-next");
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    guess(false);
  });
  reveal.addEventListener("click", () => {
    left = false;
    answer(false);
  });
  input.addEventListener("change", () => model.get("typed") !== input.value && tell());
  form.addEventListener("keydown", (event) => {
    // Else JupyterLab would take the keys for the cell's.
    event.stopPropagation();
    if (event.key === "Escape") leave();
    else if (event.key === "Enter" && event.shiftKey) {
      event.preventDefault();
      if (event.target === reveal) answer(true);
      else if (event.target === input && !input.value.trim() && !isTold()) pass();
      else guess(true);
    }
  });
  show();
  setTimeout(() => {
    const here = place(el);
    if (here) keepFolded(here.notebook);
    show();
    if (!here || model.get("found") || here.notebook.mode !== "command") return;
    if (here.notebook.activeCellIndex !== here.at + 1) return; // more cells were run, or the reader is elsewhere
    input.focus({ preventScroll: true });
  });
}
export default { render };
