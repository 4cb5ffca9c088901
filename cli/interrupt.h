#pragma once

namespace luna::cli {

/// From now on the first Ctrl-C or SIGTERM only raises a flag, so that work
/// can end in order; one that comes more than half a second later ends the
/// program.
void catch_interrupts();

bool interrupted();

/// As the first Ctrl-C does.
void interrupt();

/// Thrown by work that cannot save anything, after Ctrl-C.
struct Interrupted {};

}  // namespace luna::cli
