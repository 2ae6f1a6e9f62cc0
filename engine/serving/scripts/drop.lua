-- ARGV id. Forgets a request whose end is already in its output.
--#include finish
finish(ARGV[1])
return 1
