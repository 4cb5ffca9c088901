#pragma once

namespace luna::cli {

/// From now on the first Ctrl-C or SIGTERM only raises a flag, so that work
/// can end in order; one that comes more than half a second later ends the
/// program.
void catch_interrupts();

bool interrupted();

/// From now on `interrupted` is true after so many seconds, too. A Ctrl-C
/// behind that is still the first.
void interrupt_after(double seconds);

/// Whether those seconds are over.
bool deadline_is_over();

/// Thrown by work that cannot save anything, after Ctrl-C.
struct Interrupted {};

}  // namespace luna::cli
