# In a wheel: the library inside the package luna, LibTorch beside it in
# site-packages. Else: library, headers, program and luna-config.cmake.
if(SKBUILD)
  set(luna_libdir luna)
  set_target_properties(luna PROPERTIES
    INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib")
else()
  set(luna_libdir ${CMAKE_INSTALL_LIBDIR})
  set_target_properties(luna PROPERTIES
    INSTALL_RPATH "$ORIGIN;${LibTorch_LIBDIR}")
endif()
install(TARGETS luna EXPORT luna-targets
        LIBRARY DESTINATION ${luna_libdir} COMPONENT library)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/libluna.json
        DESTINATION ${luna_libdir} COMPONENT library)
if(TARGET luna_cuda)
  get_target_property(luna_rpath luna INSTALL_RPATH)
  set_target_properties(luna_cuda PROPERTIES INSTALL_RPATH "${luna_rpath}")
  install(TARGETS luna_cuda LIBRARY DESTINATION ${luna_libdir}
          COMPONENT library)
endif()
if(Highway_SHARED)
  file(REAL_PATH ${Highway_LIBRARY} highway_file)
  install(FILES ${highway_file} DESTINATION ${luna_libdir}
          RENAME ${Highway_SONAME} COMPONENT library)
endif()
if(jpeg_soname)
  install(FILES ${jpeg_file} DESTINATION ${luna_libdir}
          RENAME ${jpeg_soname} COMPONENT library)
endif()
if(SKBUILD)
  return()
endif()

if(TARGET luna_program)
  set_target_properties(luna_program PROPERTIES
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${LibTorch_LIBDIR}")
  install(TARGETS luna_program COMPONENT program)
endif()
install(DIRECTORY include/luna DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT development FILES_MATCHING PATTERN "*.h")

include(CMakePackageConfigHelpers)
set(luna_cmakedir ${CMAKE_INSTALL_LIBDIR}/cmake/luna)
configure_package_config_file(cmake/luna-config.cmake.in luna-config.cmake
  INSTALL_DESTINATION ${luna_cmakedir})
write_basic_package_version_file(luna-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/luna-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/luna-config-version.cmake
              ${CMAKE_CURRENT_SOURCE_DIR}/cmake/FindLibTorch.cmake
        DESTINATION ${luna_cmakedir} COMPONENT development)
install(EXPORT luna-targets NAMESPACE luna:: DESTINATION ${luna_cmakedir}
        COMPONENT development)
