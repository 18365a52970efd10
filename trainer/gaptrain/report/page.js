"use strict";
document.querySelectorAll("svg.graph").forEach(function (graph) {
  const said = graph.parentNode.querySelector(".said");
  let pinned = null;

  function show(node) {
    graph.classList.toggle("focus", node !== null);
    graph.querySelectorAll(".on").forEach(function (part) { part.classList.remove("on"); });
    said.textContent = node === null ? "\u00a0" : node.querySelector("title").textContent;
    if (node === null) { return; }
    const left = node.classList.contains("left");
    graph.querySelectorAll("path").forEach(function (line) {
      const start = line.closest(".left");
      if (left ? start !== node : line.dataset.end !== node.dataset.node) { return; }
      line.classList.add("on");
      start.classList.add("on");
      graph.querySelector(".right[data-node='" + line.dataset.end + "']").classList.add("on");
    });
    node.classList.add("on");
  }

  function pin(node) {
    pinned = pinned === node ? null : node;
    show(pinned);
  }

  graph.querySelectorAll(".node").forEach(function (node) {
    node.addEventListener("pointerenter", function () { show(node); });
    node.addEventListener("pointerleave", function () { show(pinned); });
    node.addEventListener("focus", function () { show(node); });
    node.addEventListener("blur", function () { show(pinned); });
    node.addEventListener("click", function (event) { if (event.target.closest("a") === null) { pin(node); } });
    node.addEventListener("keydown", function (event) {
      if (event.key === "Enter") { pin(node); }
      if (event.key === "Escape") { pinned = null; show(null); }
    });
  });
});
