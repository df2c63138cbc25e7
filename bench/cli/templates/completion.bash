_bench() {
  local line="${COMP_LINE:0:COMP_POINT}" before=""
  local word="${line##* }"
  # Where = divides words, bash replaces what stands after the last one.
  if [[ $COMP_WORDBREAKS == *=* && $word == *=* ]]; then before="${word%=*}="; fi
  mapfile -t COMPREPLY < <(bench completion candidates "$line" 2>/dev/null)
  COMPREPLY=("${COMPREPLY[@]#"$before"}")
  if [[ ${COMPREPLY[0]} == *[=/] ]]; then compopt -o nospace; fi
}
complete -o bashdefault -o default -F _bench bench
