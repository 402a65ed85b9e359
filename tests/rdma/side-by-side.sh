#!/bin/bash
# In the guest: the tests of whole servers, and beside them, with what they leave of the processors,
# those of ports. Usage: side-by-side.sh PYTEST [ARGUMENT]...
set -uo pipefail
nothing_selected=5

told=$(mktemp)
nice -n 15 "$@" tests/rdma tests/contract/test_agent_contract.py >"$told" 2>&1 &
"$@" tests/contract/test_frontends.py
servers=$?
wait $!
ports=$?
cat "$told"
case $servers,$ports in
0,$nothing_selected | $nothing_selected,0) exit 0 ;;
0,*) exit $ports ;;
*) exit $servers ;;
esac
