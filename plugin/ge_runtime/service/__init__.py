"""One process owns a device; models in other processes execute on it.

The owner is the device service. The first client starts it, the last one to leave ends it, and
tensors lie in memory that both sides see.

    client   backend, engine, reconnecting_client, connection, launcher
    service  server, session, execution_loop, state, model_cache, fair_scheduler, fair_queue
    both     channel, protocol, shared_memory, identity, runtime_folder
"""
