"""Facts and logs in, sentences out: what is wrong and what to do; shipped to hosts."""
