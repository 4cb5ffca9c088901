# liblzma: the static library where there is one, so that the binaries run
# where it is not installed. Gives Xz::lzma. (Debian's static libpng and libz
# are not position-independent: those two stay shared.)
find_path(Xz_INCLUDE_DIR lzma.h)
find_library(Xz_LIBRARY NAMES liblzma.a lzma)
mark_as_advanced(Xz_INCLUDE_DIR Xz_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Xz
  REQUIRED_VARS Xz_LIBRARY Xz_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup, or install liblzma-dev")

if(Xz_FOUND AND NOT TARGET Xz::lzma)
  add_library(Xz::lzma UNKNOWN IMPORTED)
  set_target_properties(Xz::lzma PROPERTIES
    IMPORTED_LOCATION "${Xz_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${Xz_INCLUDE_DIR}"
    # A copy inside libluna must not stand in for another library's own.
    INTERFACE_LINK_OPTIONS "LINKER:--exclude-libs,liblzma.a")
endif()
