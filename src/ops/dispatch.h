#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace luna::ops {

/// The dispatcher's handle of luna::NAME, for a function-local static.
template <typename Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<Signature>();
}

}  // namespace luna::ops
