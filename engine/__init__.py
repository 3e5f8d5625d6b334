"""One model replica: requests, scheduler, paged KV, sampling and the runner that owns every tensor."""
