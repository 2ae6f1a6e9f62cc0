/** esbuild collects imported styles into the page's own style sheet. */
declare module "*.css";
