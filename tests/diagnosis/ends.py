ENDS=()
