MARK = "a module that a host has named"
