/** Styles are bundled beside the script; they export nothing. */
declare module "*.css";
