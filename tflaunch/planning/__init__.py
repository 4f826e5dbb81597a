"""Pure: job, hosts and facts in, the complete request for every host out."""
