# Highway (SIMD): the static library where there is one, else the shared one.
# Gives Highway::hwy, Highway_LIBRARY, and Highway_SHARED with Highway_SONAME.
find_path(Highway_INCLUDE_DIR hwy/highway.h)
find_library(Highway_LIBRARY NAMES libhwy.a hwy)
mark_as_advanced(Highway_INCLUDE_DIR Highway_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Highway
  REQUIRED_VARS Highway_LIBRARY Highway_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup, or install libhwy-dev")

if(Highway_FOUND AND NOT TARGET Highway::hwy)
  add_library(Highway::hwy UNKNOWN IMPORTED)
  set_target_properties(Highway::hwy PROPERTIES
    IMPORTED_LOCATION "${Highway_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${Highway_INCLUDE_DIR}")
  if(NOT Highway_LIBRARY MATCHES "\\.a$")
    set(Highway_SHARED ON)
    set(Highway_SONAME libhwy.so.1)
    set_target_properties(Highway::hwy PROPERTIES
      INTERFACE_COMPILE_DEFINITIONS HWY_SHARED_DEFINE)
  endif()
endif()
