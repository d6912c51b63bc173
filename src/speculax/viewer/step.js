"use strict";
// The rules as their pages in speculax/verify have them; the tests compare the two.
const scale = (weights) => {
  const total = weights.reduce((sum, x) => sum + x, 0);
  return total > 0 ? weights.map((x) => x / total) : weights.map(() => 0);
};
const residual = (target, draft, held) => target.map((p, x) => Math.max(held * p - (draft ? draft[x] : 0), 0));

// What is kept of a draft, by which tests, and what the next token is drawn from.
const judge = (one, rule) => {
  const length = one.tokens.length;
  const target = one.target.map(scale);
  const draft = one.draft.map(scale);
  const tests = [];
  let held = 1; // P_i of block verification
  const helds = [1];
  for (let i = 0; i < length; i += 1) {
    const token = one.tokens[i];
    const [p, q] = [target[i][token], draft[i][token]];
    held = q > 0 ? Math.min(1, (held * p) / q) : 0;
    helds.push(held);
    tests.push({ p, q, uniform: one.accept[i], limit: q > 0 ? Math.min(1, p / q) : 0 });
  }
  let kept = 0;
  if (rule === "block") {
    tests.forEach((test, i) => {
      const mass = i + 1 < length ? residual(target[i + 1], draft[i + 1], helds[i + 1]).reduce((sum, x) => sum + x, 0) : 0;
      const room = mass + 1 - helds[i + 1];
      test.limit = i + 1 === length ? helds[length] : helds[i + 1] === 1 ? 1 : room > 0 ? mass / room : 1;
      test.passes = test.uniform < test.limit;
      if (test.passes) kept = i + 1;
    });
  } else {
    tests.forEach((test) => {
      test.passes = test.uniform * test.q < test.p;
    });
    while (kept < length && tests[kept].passes) kept += 1;
  }
  const share = rule === "block" ? helds[kept] : 1;
  const weights = kept < length ? residual(target[kept], draft[kept], share) : target[length];
  const law = weights.some((x) => x > 0) ? scale(weights) : target[kept];
  let sum = 0;
  let drawn = law.findIndex((x) => {
    sum += x;
    return x > 0 && sum > one.sample;
  });
  if (drawn < 0) drawn = law.findLastIndex((x) => x > 0);
  return { tests, kept, law, drawn, share, isBonus: kept === length };
};

(() => {
  const find = (id) => document.getElementById(id);
  const first = JSON.parse(find("step").textContent);
  let one = structuredClone(first);
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const digits = (x) => x.toFixed(3);

  const slider = (label, value, change, most = 1) => {
    const input = make("input");
    input.type = "range";
    [input.min, input.max, input.step] = [0, most, 0.01];
    input.value = value;
    input.setAttribute("aria-label", label);
    input.addEventListener("input", () => {
      change(Number(input.value));
      show();
    });
    return input;
  };
  const line = (label, input, value) => {
    const row = make("div", "line");
    const name = make("span", "name", label);
    const number = make("output", "", value);
    row.append(name, input, number);
    return [row, number];
  };

  const updates = []; // what to write anew when anything moves: sliders stay where they are
  const build = () => {
    updates.length = 0;
    const length = one.tokens.length;
    const places = [];
    for (let i = 0; i <= length; i += 1) {
      const place = make("section", "place");
      place.append(make("h2", "", i < length ? `Draft token ${i + 1}` : "After the draft"));
      one.target[i].forEach((_, x) => {
        const laws = i < length ? ["draft", "target"] : ["target"];
        laws.forEach((kind) => {
          const input = slider(`${kind} of token ${x} at place ${i + 1}`, one[kind][i][x], (value) => {
            one[kind][i][x] = value;
          });
          input.classList.add(kind);
          const [row, number] = line(laws[0] === kind ? `token ${x}` : "", input, "");
          row.append(make("span", "kind", kind));
          place.append(row);
          updates.push(() => {
            number.textContent = digits(scale(one[kind][i])[x]);
            row.classList.toggle("chosen", i < length && one.tokens[i] === x);
          });
        });
      });
      if (i < length) {
        const choice = make("select");
        choice.setAttribute("aria-label", `draft token ${i + 1}`);
        one.target[i].forEach((_, x) => {
          const option = make("option", "", `token ${x}`);
          option.value = x;
          choice.append(option);
        });
        choice.value = one.tokens[i];
        choice.addEventListener("change", () => {
          one.tokens[i] = Number(choice.value);
          show();
        });
        const label = make("label", "", "drafted: ");
        label.append(choice);
        place.append(label);
        const input = slider(`uniform of test ${i + 1}`, one.accept[i], (value) => {
          one.accept[i] = Math.min(value, 0.99);
        }, 0.99);
        const [row, number] = line("uniform", input, "");
        place.append(row);
        const test = make("p", "test");
        place.append(test);
        updates.push((found) => {
          const { p, q, uniform, limit, passes } = found.tests[i];
          number.textContent = digits(uniform);
          const isRead = find("rule").value === "block" || i <= found.kept;
          const sign = passes ? "<" : "\u2265";
          const told =
            find("rule").value === "block"
              ? `${digits(uniform)} ${sign} ${digits(limit)}`
              : `${digits(uniform)} \u00d7 ${digits(q)} ${sign} ${digits(p)}`;
          const result = i < found.kept ? "kept" : i === found.kept ? "refused" : "dropped";
          test.textContent = isRead ? `${told}: ${result}` : "not looked at: an earlier one was refused";
          test.className = `test ${isRead ? result : "dropped"}`;
        });
      }
      places.push(place);
    }
    find("places").replaceChildren(...places);

    const bars = make("div", "bars");
    const input = slider("uniform of the draw", one.sample, (value) => {
      one.sample = Math.min(value, 0.99);
    }, 0.99);
    const [row, number] = line("uniform", input, "");
    const told = make("p", "hint");
    find("draw").replaceChildren(told, bars, row);
    updates.push((found) => {
      number.textContent = digits(one.sample);
      const share = found.share < 1 ? `${digits(found.share)} \u00d7 target` : "target";
      told.textContent = found.isBonus
        ? "All is kept: one more token, from the target's law after the draft."
        : `From max(${share} \u2212 draft, 0) at draft token ${found.kept + 1}, scaled to add up to 1. The uniform falls into one of the parts.`;
      const parts = found.law.map((x, token) => {
        const part = make("span", token === found.drawn ? "part drawn" : "part", x > 0.04 ? `${token}` : "");
        part.style.width = `${100 * x}%`;
        part.title = `token ${token}: ${digits(x)}`;
        return part;
      });
      const mark = make("i", "mark");
      mark.style.left = `${100 * one.sample}%`;
      bars.replaceChildren(...parts, mark);
    });
  };

  const show = () => {
    const found = judge(one, find("rule").value);
    updates.forEach((update) => update(found));
    const tokens = [...one.tokens.slice(0, found.kept), found.drawn];
    find("verdict").textContent =
      `num_accepted ${found.kept}, tokens [${tokens.join(", ")}]: ${found.kept} of ${one.tokens.length} draft tokens, ` +
      `then token ${found.drawn}, ${found.isBonus ? "a bonus" : "the correction"}.`;
  };

  find("rule").value = first.rule || "token";
  find("rule").addEventListener("change", show);
  find("reset").addEventListener("click", () => {
    one = structuredClone(first);
    build();
    show();
  });
  document.querySelector("main").hidden = false;
  build();
  show();
})();
