_bench() {
  local -a found spaced open
  found=("${(@f)$(bench completion candidates "$LBUFFER" 2>/dev/null)}")
  spaced=(${found:#*[=/]}) open=(${(M)found:#*[=/]})
  compadd -Q -- $spaced
  compadd -Q -S '' -- $open
}
compdef _bench bench
