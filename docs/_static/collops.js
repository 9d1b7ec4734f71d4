// What the theme leaves out for readers who use a keyboard or a screen reader; tests/browser checks the pages with axe.
document.querySelectorAll(".caption[role=heading]").forEach(caption => caption.setAttribute("aria-level", "2"));
document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
document.querySelector(".toc-drawer")?.setAttribute("aria-label", "This page");
document.querySelectorAll(".sphx-glr-thumbcontainer p a").forEach(link => link.setAttribute("aria-label", link.textContent));
document.querySelectorAll("article pre, article table.docutils, article div.math").forEach(region => {
  const scrolls = region.scrollWidth > region.clientWidth || region.scrollHeight > region.clientHeight;
  if (scrolls) region.tabIndex = 0; // so that arrow keys scroll it
});
const results = document.getElementById("search-results");
results?.insertAdjacentHTML("beforebegin", "<h1>Search</h1>");
