complete -c bench -f -a '(bench completion candidates (commandline -cp) 2>/dev/null)'
