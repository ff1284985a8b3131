"""One kernel mechanism a module. Each decides in a pure function and acts in a thin one."""
